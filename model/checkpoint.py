"""The weights of a Hugging Face folder, by tensor name: one safetensors file, or several with an index.

Missing or misshapen tensors and files outside the folder are refused. Formats that run code when loaded are not read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.safetensors_file import SafetensorsFile
from protocol.errors import CheckpointError
from runtime.files import read_fields

MAX_NAME_BYTES: Final = 255
CHECKED_VALUES: Final = 1 << 22  # at a time
SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
SERVED_DTYPES: Final = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Checkpoint:
    """The weights of one folder. A tensor's bytes are read when the model first computes with it."""

    def __init__(self, folder: Path, files: Mapping[str, SafetensorsFile], check_values: bool = False) -> None:
        """`files` maps a tensor's name to its file. `check_values`: `take` reads a whole tensor and refuses NaN and
        infinities."""
        self.folder = folder
        self._files = files
        self._check_values = check_values
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {  # name -> (dtype as in the header, shape)
            name: file.entries[name] for name, file in files.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor in the mapped file. Nothing is read yet."""
        return self._files[name].raw(name)

    @property
    def dtype(self) -> str | None:
        """The dtype of the embedding, or of any tensor if there is none; None if it cannot be served."""
        kinds = self.tensors
        name = next((name for name in kinds if name.endswith("embed_tokens.weight")), next(iter(kinds), ""))
        return SERVED_DTYPES.get(kinds[name][0]) if name else None

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The tensor `name`: a view over the mapped file if device and dtype allow it, else a converted copy.

        CheckpointError when it is missing, has another shape or dtype, or fails the check of its values.
        """
        file = self._files.get(name)
        if file is None:
            raise CheckpointError(f"{self.folder}: tensor {name} of shape {list(shape)} is missing from the checkpoint")
        kind, held = self.tensors[name]
        if held != shape:
            raise CheckpointError(f"{file.path}: {name}: got shape {list(held)}, config.json implies {list(shape)}")
        if kind not in SERVED_DTYPES:
            raise CheckpointError(f"{file.path}: {name}: got dtype {kind}, supported: {', '.join(SERVED_DTYPES)}")

        found = file.tensor(name)
        if self._check_values and (num_bad := count_not_finite(found)):
            raise CheckpointError(
                f"{file.path}: {name}: {num_bad} of {found.numel()} values are NaN or infinite, expected finite numbers"
            )
        return found.to(device=device, dtype=dtype)


def count_not_finite(tensor: Tensor) -> int:
    """The number of values that are NaN or infinite, counted part by part to save memory."""
    return sum(int(part.isfinite().logical_not().sum()) for part in tensor.flatten().split(CHECKED_VALUES))


def open_checkpoint(folder: Path, check_values: bool = False) -> Checkpoint:
    """Maps the weights of `folder`. CheckpointError when files are missing or damaged."""
    if (folder / INDEX_FILE).exists():
        return Checkpoint(folder, _open_shards(folder), check_values)
    if (folder / SINGLE_FILE).exists():
        file = SafetensorsFile(folder / SINGLE_FILE)
        return Checkpoint(folder, dict.fromkeys(file.entries, file), check_values)
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
    found = f"; found {', '.join(others[:3])}, but only safetensors weights are read" if others else ""
    raise CheckpointError(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}{found}")


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
