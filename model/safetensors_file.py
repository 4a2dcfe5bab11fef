"""One safetensors file, mapped and checked by the `safetensors` package. Its errors become CheckpointErrors.

The mapping is never written, so all workers of a host share one copy in the page cache.
Format: github.com/huggingface/safetensors, "Format".
"""

import math
import os
from pathlib import Path
from typing import Any, Final

import jiter
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.errors import CheckpointError, brief, brief_name

MAX_HEADER_BYTES: Final = 100_000_000  # the package's own limit
MAX_SAID_CHARS: Final = 200  # of the package's message
_LENGTH_BYTES: Final = 8
_ITEM_BYTES: Final = dict(
    zip("F64 I64 F32 I32 F16 BF16 I16 I8 U8 BOOL".split(), (8, 8, 4, 4, 2, 2, 2, 1, 1, 1), strict=True)
)


class SafetensorsFile:
    """Entries and mapped tensors of one file. The mapping lives as long as any tensor made from it."""

    def __init__(self, path: Path) -> None:
        """Maps `path` and checks its header. Raises CheckpointError when the file is damaged or cut short."""
        self.path = path
        try:
            header, num_data_bytes = _read_header(path)
            self._file = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be mapped ({error})") from None
        except SafetensorError as error:
            raise CheckpointError(f"{path}: {_what_is_wrong(header, num_data_bytes, str(error))}") from None

        self.entries: dict[str, tuple[str, tuple[int, ...]]] = {}  # name -> (dtype as in the header, shape)
        for name in self._file.keys():  # noqa: SIM118  # not a mapping
            described = self._file.get_slice(name)
            self.entries[name] = described.get_dtype(), tuple(described.get_shape())

    def tensor(self, name: str) -> Tensor:
        """The tensor: a view over the mapping, or a copy if its bytes are not aligned."""
        found = self._view(name)
        return found if found.data_ptr() % found.itemsize == 0 else found.clone()

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes: a view over the mapping."""
        return self._view(name).reshape(-1).view(torch.uint8).numpy().data

    def _view(self, name: str) -> Tensor:
        try:
            found: Tensor = self._file.get_tensor(name)
        except (SafetensorError, AttributeError, TypeError, RuntimeError):  # torch has no such dtype
            dtype, _ = self.entries[name]
            raise CheckpointError(f"{self.path}: {name}: got dtype {dtype}, expected one that torch has") from None
        return found


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header as JSON, and the number of bytes after it.

    CheckpointError if the file is too short, or a key appears twice, which the package would accept.
    """
    if path.exists() and not path.is_file():  # reading a pipe would block for ever
        raise CheckpointError(f"{path}: not a file")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)  # read ahead while the worker starts
        size = os.fstat(file.fileno()).st_size
        num_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        end = _LENGTH_BYTES + num_bytes
        if size < _LENGTH_BYTES:
            raise CheckpointError(f"{path}: got {size} bytes, too short for a safetensors file")
        if num_bytes > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: header of {num_bytes} bytes; this is not a safetensors file")
        if end > size:
            raise CheckpointError(f"{path}: truncated: the header ends at byte {end}, the file at byte {size}")
        text = file.read(num_bytes)

    try:
        header = jiter.from_json(text, catch_duplicate_keys=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is not valid JSON ({_printable(str(error))})") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object; this is not a safetensors file")
    header.pop("__metadata__", None)
    return header, size - end


def _what_is_wrong(header: dict[str, Any], num_data_bytes: int, said: str) -> str:
    """One sentence that names the tensor at fault in a refused header. `said` is the package's message."""
    said, last, last_end = _printable(said), "", 0

    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, end]} if all(
                type(number) is int and number >= 0 for number in (*shape, start, end)
            ):
                item_bytes = _ITEM_BYTES.get(dtype)
                if item_bytes is not None and end - start != math.prod(shape) * item_bytes:
                    what = f"shape {brief(shape)} of {dtype}"
                    return f"{brief_name(name)}: {end - start} bytes do not hold {what}"
                if f"unknown variant `{dtype}`" in said:
                    return f"{brief_name(name)}: got dtype {brief_name(dtype)}, which safetensors does not have"
                if end > last_end:
                    last, last_end = name, end
            case _:
                return f"{brief_name(name)}: damaged header entry {brief(entry)}"

    if last_end > num_data_bytes:
        return f"truncated: {brief_name(last)} ends at byte {last_end} after the header, the file at {num_data_bytes}"
    return f"{said}; expected tensors one after the other, up to the end of the file"


def _printable(said: str) -> str:
    kept = said.removeprefix("Error while deserializing header: ")[:MAX_SAID_CHARS]
    return "".join(each for each in kept if each.isprintable())
