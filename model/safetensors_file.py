"""One safetensors file, memory-mapped: its header checked in full, its tensors views over the mapping.

The mapping is private and never written, so every worker on a host that maps the same file shares one copy in the page
cache. What it does not know: which tensors a model needs. Format: github.com/huggingface/safetensors, "Format".
"""

import json
import math
import mmap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from protocol.brief import brief, brief_name
from protocol.errors import CheckpointError

MAX_HEADER_BYTES: Final = 100_000_000
_LENGTH_BYTES: Final = 8
_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a header. [start, end) counts from the beginning of the file."""

    dtype: str  # as the header spells it: F32, BF16, ...
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """Entries and mapped tensors of one file. The mapping lives as long as any tensor made from it."""

    def __init__(self, path: Path) -> None:
        """Maps `path` and checks its header. Raises CheckpointError when the file is damaged or cut short."""
        self.path = path
        try:
            if path.exists() and not path.is_file():  # a pipe would keep us waiting for ever
                raise CheckpointError(f"{path}: it is no file")
            with path.open("rb") as file:
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be mapped ({error})") from None
        self._mapping.madvise(mmap.MADV_WILLNEED)  # let the kernel read ahead while the worker starts
        self.entries = _read_header(path, self._mapping)

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes: a view over the mapping."""
        entry = self.entries[name]
        return memoryview(self._mapping)[entry.start : entry.end]

    def tensor(self, name: str) -> Tensor:
        """The tensor as it lies in the file: a view over the mapping (a copy only where it is not aligned)."""
        entry = self.entries[name]
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(f"{self.path}: {name}: got dtype {entry.dtype}, expected one of {', '.join(_DTYPES)}")
        if entry.start == entry.end:
            return torch.empty(entry.shape, dtype=dtype)
        itemsize = dtype.itemsize
        buffer: Any = (
            self._mapping if entry.start % itemsize == 0 else bytearray(self._mapping[entry.start : entry.end])
        )
        offset = entry.start if buffer is self._mapping else 0
        count = (entry.end - entry.start) // itemsize
        return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(entry.shape)


def _read_header(path: Path, mapping: mmap.mmap) -> dict[str, TensorEntry]:
    size = len(mapping)
    if size < _LENGTH_BYTES:
        raise CheckpointError(f"{path}: got {size} bytes, too short for a safetensors file")
    header_bytes = int.from_bytes(mapping[:_LENGTH_BYTES], "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: header of {header_bytes} bytes; this is not a safetensors file")
    data_start = _LENGTH_BYTES + header_bytes
    if data_start > size:
        raise CheckpointError(f"{path}: truncated: the header ends at byte {data_start}, the file at byte {size}")
    try:
        header = json.loads(mapping[_LENGTH_BYTES:data_start], object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, _Repeated) else "the header is not JSON; this is not a safetensors file"
        raise CheckpointError(f"{path}: {why}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object; this is not a safetensors file")
    entries = {
        name: _read_entry(path, name, value, data_start, size)
        for name, value in header.items()
        if name != "__metadata__"
    }
    _refuse_overlaps(path, entries)
    return entries


class _Repeated(ValueError):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Repeated("the header names a tensor or a field twice")
    return found


def _refuse_overlaps(path: Path, entries: dict[str, TensorEntry]) -> None:
    held = sorted((entry.start, entry.end, name) for name, entry in entries.items() if entry.end > entry.start)
    for (_, end, name), (start, _, other) in pairwise(held):
        if start < end:
            raise CheckpointError(f"{path}: {brief_name(name)} and {brief_name(other)} lie over each other")


def _read_entry(path: Path, name: str, value: object, data_start: int, file_size: int) -> TensorEntry:
    try:
        if not isinstance(value, dict):
            raise TypeError
        dtype, shape, (start, end) = str(value["dtype"]), tuple(value["shape"]), value["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: {brief_name(name)}: damaged header entry {brief(value)}") from None
    if data_start + end > file_size:
        raise CheckpointError(
            f"{path}: truncated: {brief_name(name)} ends at byte {data_start + end}, the file at byte {file_size}"
        )
    known = _DTYPES.get(dtype)
    if end < start or (known is not None and end - start != math.prod(shape) * known.itemsize):
        what = f"shape {brief(list(shape))} of {brief_name(dtype)}"
        raise CheckpointError(f"{path}: {brief_name(name)}: {end - start} bytes do not hold {what}")
    return TensorEntry(dtype, shape, data_start + start, data_start + end)
