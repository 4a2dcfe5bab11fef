"""What the gateway reads of a model folder beside its tokenizer: config.json and generation_config.json.

Absent files mean absent knowledge (workers bring their own limits); a damaged one is a CheckpointError. What it does
not know: weights, tokenizers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from protocol.errors import CheckpointError


@dataclass(frozen=True)
class SamplingDefaults:
    """What generation_config.json says explicitly; None where it is silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclass(frozen=True)
class ModelFolder:
    """Facts about one model. Lengths in tokens."""

    path: Path
    context_length: int | None
    vocab_size: int | None
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults


def read_model_folder(path: Path) -> ModelFolder:
    """Reads the folder; CheckpointError names what is wrong with it."""
    if not path.is_dir():
        raise CheckpointError(f"model folder {str(path)!r} does not exist", param="model")
    config = read_object(path / "config.json")
    generation = read_object(path / "generation_config.json")
    where = "generation_config.json"
    defaults = SamplingDefaults(
        temperature=_number(generation, "temperature", where, 0.0, 100.0),
        top_p=_number(generation, "top_p", where, 0.0, 1.0),
        top_k=_integer(generation, "top_k", where),
        min_p=_number(generation, "min_p", where, 0.0, 1.0),
    )
    eos = _token_ids(generation, "eos_token_id", where) or _token_ids(config, "eos_token_id", "config.json")
    return ModelFolder(
        path,
        _integer(config, "max_position_embeddings", "config.json"),
        _integer(config, "vocab_size", "config.json"),
        eos,
        defaults,
    )


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty when there is no such file; CheckpointError otherwise."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error.strerror}") from error
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{path.name}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name}: got {type(found).__name__}, expected a JSON object")
    return found


def _number(source: dict[str, Any], name: str, where: str, low: float, high: float) -> float | None:
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CheckpointError(f"{where}: {name}: got {value!r}, expected a number in [{low}, {high}]", param=name)
    return float(value)


def _integer(source: dict[str, Any], name: str, where: str) -> int | None:
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"{where}: {name}: got {value!r}, expected an integer", param=name)
    return value


def _token_ids(source: dict[str, Any], name: str, where: str) -> tuple[int, ...]:
    value = source.get(name)
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
        raise CheckpointError(f"{where}: {name}: got {value!r}, expected a token id or a list of them", param=name)
    return tuple(listed)
