"""The weights of a Hugging Face folder, by tensor name: one safetensors file, or several with an index; their digests.

Missing or misshapen tensors and files outside the folder are refused. Formats that run code when loaded are not read.
The `safetensors` package maps and checks files; its errors become CheckpointErrors. The mapping is never written, so
all workers of a host share one copy in the page cache. Format: github.com/huggingface/safetensors, "Format".

Workers with different weights never exchange KV: they compare digests of a few blocks of each tensor. The blocks'
places depend on the tensor's name and size only, so all workers read the same ones even if their files differ.
"""

import ctypes
import math
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import jiter
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.quantised import from_fp8
from model.rows import ReadRows, Rows, whole
from protocol.errors import CheckpointError, brief, brief_name
from runtime.files import read_fields

MAX_NAME_BYTES: Final = 255
CHECKED_VALUES: Final = 1 << 22  # at a time
SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
SERVED_DTYPES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
INTEGER_DTYPES: Final = ("I64", "I32")
FP8: Final = "F8_E4M3"
MAX_HEADER_BYTES: Final = 100_000_000  # the package's own limit
MAX_SAID_CHARS: Final = 200  # of the package's message
_LENGTH_BYTES: Final = 8
_ITEM_BYTES: Final = dict(
    zip("F64 I64 F32 I32 F16 BF16 I16 I8 U8 BOOL".split(), (8, 8, 4, 4, 2, 2, 2, 1, 1, 1), strict=True)
)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_EXPERT: Final = re.compile(r"\.experts\.\d+\.")
BLOCK_BYTES: Final = 4096
BLOCKS_PER_TENSOR: Final = 8  # at most 64 MiB of MAX_TENSORS; of an expert two blocks


class Part(NamedTuple):
    """The numbers [start, start + size) of one dimension of a tensor."""

    dim: int
    start: int
    size: int


class Taken(NamedTuple):
    """What a model holds of a tensor."""

    numbers: int  # how many: fewer than the tensor has if only a part of it was taken
    dtype: torch.dtype
    is_view: bool  # over the mapped file


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

    def tensor(self, name: str, part: Part | None = None) -> Tensor:
        """The tensor, or a part of it: a view over the mapping, or a copy if its bytes are not aligned."""
        view = self._view(name)
        if part is not None:
            view = view.narrow(*part)  # no byte of the rest is read
        return view if view.data_ptr() % view.itemsize == 0 else view.clone()

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes: a view over the mapping."""
        return self._view(name).reshape(-1).view(torch.uint8).numpy().data

    def forget(self, name: str) -> None:
        """Takes the tensor's whole pages out of this process's memory. Who reads them again reads the file."""
        view = self._view(name)
        start = -(-view.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (view.data_ptr() + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if size > 0 and _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise")

    def _view(self, name: str) -> Tensor:
        try:
            view: Tensor = self._file.get_tensor(name)
        except (SafetensorError, AttributeError, TypeError, RuntimeError):  # torch has no such dtype
            dtype, _ = self.entries[name]
            raise CheckpointError(f"{self.path}: {name}: got dtype {dtype}, expected one that torch has") from None
        return view


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
    return "".join(char for char in kept if char.isprintable())


class Checkpoint:
    """The weights of one folder. A tensor's bytes are read when the model first computes with it."""

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, SafetensorsFile],
        check_values: bool = False,
        fp8_block: tuple[int, int] | None = None,
    ) -> None:
        """`files` maps a tensor's name to its file. `check_values`: `take` reads a whole tensor and refuses NaN and
        infinities. `fp8_block`: outputs and inputs of a fp8 weight that share a scale; None: there are no such."""
        self.folder = folder
        self._files = files
        self._check_values = check_values
        self._fp8_block = fp8_block
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {  # name -> (dtype as in the header, shape)
            name: file.entries[name] for name, file in files.items()
        }
        self.taken: dict[str, Taken] = {}  # the tensors that a model has, by name

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor in the mapped file. Nothing is read yet."""
        return self._files[name].raw(name)

    def forget(self, name: str) -> None:
        """Gives back the memory of what was read of a tensor. It stays valid."""
        self._files[name].forget(name)

    @property
    def dtype(self) -> str | None:
        """The dtype of the embedding, or of any tensor if there is none; None if it cannot be served."""
        kinds = self.tensors
        name = next((name for name in kinds if name.endswith("embed_tokens.weight")), next(iter(kinds), ""))
        return SERVED_DTYPES.get(kinds[name][0]) if name else None

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def are_equal(self, name: str, other: str) -> bool:
        """Whether both tensors are there and have the same bytes, and no scales that may differ. Reads both."""
        if name not in self or other not in self or self.tensors[name] != self.tensors[other]:
            return False
        if self.tensors[name][0] not in SERVED_DTYPES:
            return False
        one, two = (torch.frombuffer(self.raw(each), dtype=torch.uint8) for each in (name, other))
        return torch.equal(one, two)

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, part: Part | None = None
    ) -> Tensor:
        """The tensor `name`: a view over the mapped file if device and dtype allow it, else a converted copy.

        `shape` is that of the whole tensor, also where only a `part` is taken. The rest is not read then. On the device
        meta no number is read: only `taken` tells what was asked for.
        CheckpointError when it is missing, has another shape or dtype, or fails the check of its values.
        """
        tensor, scales_RC = self._held(name, shape, dtype, part, is_view=device.type == "cpu")
        if device.type == "meta":
            return tensor.to(device=device, dtype=dtype)
        if scales_RC is None:
            self.check(name, tensor)
            return tensor.to(device=device, dtype=dtype)
        numbers = whole(self._rows(name, tensor, scales_RC, dtype, part))
        self.check(name, numbers)
        return numbers.to(device=device)

    def rows(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part | None = None) -> Rows:
        """The same on a CPU, but what has another dtype in the file is read when its rows are asked for."""
        tensor, scales_RC = self._held(name, shape, dtype, part, is_view=True)
        if tensor.dtype == dtype:
            self.check(name, tensor)
            return tensor
        numbers = self._rows(name, tensor, scales_RC, dtype, part)
        self.check(name, numbers)
        return numbers

    def _held(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part | None, *, is_view: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The numbers of a tensor as the file holds them, and the scales of a fp8 weight. Notes that they are taken."""
        if self._fp8_block is None or self.tensors.get(name, ("",))[0] != FP8:
            tensor = self._find(name, shape, tuple(SERVED_DTYPES), part)
            self.taken[name] = Taken(tensor.numel(), dtype, is_view=is_view and tensor.dtype == dtype)
            return tensor, None

        tensor = self._find(name, shape, (*SERVED_DTYPES, FP8), part)
        self.taken[name] = Taken(tensor.numel(), dtype, is_view=False)
        (outputs, inputs), (rows, columns), scales_name = shape, self._fp8_block, f"{name}_scale_inv"
        scales_RC = self._find(scales_name, (-(-outputs // rows), -(-inputs // columns)), ("F32", "BF16"))
        self.taken[scales_name] = Taken(0, scales_RC.dtype, is_view=False)
        return tensor, scales_RC

    def _rows(self, name: str, tensor: Tensor, scales_RC: Tensor | None, dtype: torch.dtype, part: Part | None) -> Rows:
        """The numbers of a weight, or of a part of one, that need work to be read."""
        block = self._fp8_block
        if scales_RC is None or block is None:
            return ReadRows(tensor.shape, lambda start, end: tensor[start:end].to(dtype))
        self.check(f"{name}_scale_inv", scales_RC)
        row, column = (0, 0) if part is None else (part.start, 0) if part.dim == 0 else (0, part.start)
        return ReadRows(
            tensor.shape,
            lambda start, end: from_fp8(tensor[start:end], scales_RC, block, (row + start, column), dtype),
        )

    def mapped(self, name: str, shape: tuple[int, ...], kinds: tuple[str, ...] = tuple(SERVED_DTYPES)) -> Tensor:
        """A view over the mapped file, of which nothing is read yet. CheckpointError as in `take`, but for values."""
        return self._find(name, shape, kinds)

    def check(self, name: str, numbers: Rows) -> None:
        """CheckpointError if values are checked and one of these, which were read from `name`, is NaN or infinite."""
        if self._check_values and (num_bad := count_not_finite(numbers)):
            raise CheckpointError(
                f"{self._files[name].path}: {name}: {num_bad} of {math.prod(numbers.shape)} values are NaN or infinite,"
                " expected finite numbers"
            )

    def take_integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The integers of tensor `name`, int64 in host memory. CheckpointError as in `take`."""
        tensor = self._find(name, shape, INTEGER_DTYPES).long()
        self.taken[name] = Taken(tensor.numel(), tensor.dtype, is_view=False)
        return tensor

    def _find(self, name: str, shape: tuple[int, ...], kinds: tuple[str, ...], part: Part | None = None) -> Tensor:
        file = self._files.get(name)
        if file is None:
            raise CheckpointError(f"{self.folder}: tensor {name} of shape {list(shape)} is missing from the checkpoint")
        kind, held = self.tensors[name]
        if held != shape:
            raise CheckpointError(f"{file.path}: {name}: got shape {list(held)}, config.json implies {list(shape)}")
        if kind not in kinds:
            raise CheckpointError(f"{file.path}: {name}: got dtype {kind}, supported: {', '.join(kinds)}")
        return file.tensor(name, part)


def count_not_finite(numbers: Rows) -> int:
    """The number of values that are NaN or infinite, counted part by part to save memory."""
    num_rows = max(1, CHECKED_VALUES // max(1, math.prod(numbers.shape[1:])))
    parts = (numbers[start : start + num_rows] for start in range(0, numbers.shape[0], num_rows))
    return sum(int(rows.isfinite().logical_not().sum()) for rows in parts)


def open_checkpoint(folder: Path, check_values: bool = False, fp8_block: tuple[int, int] | None = None) -> Checkpoint:
    """Maps the weights of `folder`. CheckpointError when files are missing or damaged. `fp8_block`: see Checkpoint."""
    if (folder / INDEX_FILE).exists():
        return Checkpoint(folder, _open_shards(folder), check_values, fp8_block)
    if (folder / SINGLE_FILE).exists():
        file = SafetensorsFile(folder / SINGLE_FILE)
        return Checkpoint(folder, dict.fromkeys(file.entries, file), check_values, fp8_block)
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
    hint = f"; found {', '.join(others[:3])}, but only safetensors weights are read" if others else ""
    if any(name.endswith(".bin") for name in others):
        hint += "; convert it with safetensors.torch.save_file, as docs/models.md says"
    raise CheckpointError(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}{hint}")


def _open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    index = read_fields(folder / INDEX_FILE)
    weight_map = index.nested("weight_map")
    if not weight_map.values:
        raise index.refuse("weight_map", "an object from tensor names to file names")

    shards: dict[str, SafetensorsFile] = {}
    files: dict[str, SafetensorsFile] = {}
    for name in weight_map.values:
        shard = weight_map.text(name)
        is_name = shard not in ("", ".", "..") and Path(shard).name == shard and "\\" not in shard
        if not is_name or not shard.isprintable() or len(shard.encode()) > MAX_NAME_BYTES:
            raise weight_map.refuse(name, "a file name inside the model folder")
        if shard not in shards:
            shards[shard] = SafetensorsFile(folder / shard)
        if name not in shards[shard].entries:
            raise CheckpointError(f"{folder / shard}: tensor {name} is missing, though {INDEX_FILE} says it is here")
        files[name] = shards[shard]
    return files


def sampled_digests(checkpoint: Checkpoint) -> dict[str, bytes]:
    """By tensor name: xxh3-64 of its dtype, shape and sampled blocks. A tensor of up to 32 KiB is read whole."""
    return {name: _digest(checkpoint, name, sample_places) for name in checkpoint}


def full_digests(checkpoint: Checkpoint) -> dict[str, bytes]:
    """By tensor name: xxh3-64 of its dtype, shape and all bytes."""
    return {name: _digest(checkpoint, name, lambda _, num_bytes: [(0, num_bytes)]) for name in checkpoint}


def folded(digests: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same with one digest for the tensors of all experts of a layer that are called alike, because a fingerprint
    has no room for thousands."""
    of_experts: dict[str, list[bytes]] = {}
    found = dict[str, bytes]()
    for name in sorted(digests):
        if (together := _EXPERT.sub(".experts.*.", name)) == name:
            found[name] = digests[name]
        else:
            of_experts.setdefault(together, []).extend((name.encode(), digests[name]))
    return found | {name: xxhash.xxh3_64_digest(b"\n".join(parts)) for name, parts in of_experts.items()}


def sample_places(name: str, num_bytes: int) -> list[tuple[int, int]]:
    """[start, end) of the sampled blocks of a tensor with `num_bytes` bytes, ascending and within the tensor.

    The first and the last block are always read. Each of the others lies somewhere in its own part of the tensor. Of an
    expert, which is one of very many tensors, only these two are read.
    """
    if num_bytes <= BLOCKS_PER_TENSOR * BLOCK_BYTES:
        return [(0, num_bytes)]
    if _EXPERT.search(name):
        return [(0, BLOCK_BYTES), (num_bytes - BLOCK_BYTES, num_bytes)]
    return [(start, start + BLOCK_BYTES) for start in _starts(name, num_bytes - BLOCK_BYTES)]


def _starts(name: str, last: int) -> Iterator[int]:
    yield 0
    num_parts = BLOCKS_PER_TENSOR - 2
    for part in range(num_parts):
        begin, end = last * part // num_parts, last * (part + 1) // num_parts
        yield begin + xxhash.xxh3_64_intdigest(name.encode(), seed=part) % (end - begin)
    yield last


def _digest(checkpoint: Checkpoint, name: str, places: Callable[[str, int], list[tuple[int, int]]]) -> bytes:
    dtype, shape = checkpoint.tensors[name]
    raw = checkpoint.raw(name)
    digest = xxhash.xxh3_64(f"{dtype} {list(shape)}\n".encode())
    for start, end in places(name, len(raw)):
        digest.update(raw[start:end])
    return digest.digest()
