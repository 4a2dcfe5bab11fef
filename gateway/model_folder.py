"""What the gateway reads of a model folder beside its tokenizer: config.json and generation_config.json.

Absent files mean absent knowledge (workers bring their own limits); a damaged one is a CheckpointError. What it does
not know: weights, tokenizers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from model.config import config_facts, load_config
from protocol.brief import brief
from protocol.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20

# what generation_config.json may ask for and Baton does not do, with the values that ask for nothing
NOT_APPLIED: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
}


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
    not_applied: Mapping[str, Any] = field(default_factory=dict)  # what generation_config.json asks for in vain


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
        top_k=_integer(generation, "top_k", where, 0),
        min_p=_number(generation, "min_p", where, 0.0, 1.0),
    )
    eos = _token_ids(generation, "eos_token_id", where) or _token_ids(config, "eos_token_id", "config.json")
    return ModelFolder(
        path,
        _integer(config, "max_position_embeddings", "config.json", 1),
        _integer(config, "vocab_size", "config.json", 1),
        eos,
        defaults,
        {
            name: value
            for name, neutral in NOT_APPLIED.items()
            if (value := generation.get(name)) is not None and value not in neutral
        },
    )


def model_facts(path: Path) -> dict[str, str]:
    """The configuration as workers tell theirs (Fingerprint.facts), where config.json names an architecture; else {}.

    CheckpointError when no worker could serve it.
    """
    values = read_object(path / "config.json")
    if not values.get("architectures") and not values.get("model_type"):
        return {}
    return config_facts(load_config(path, context_length=2))  # so short that no sliding window matters


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty when there is no such file; CheckpointError otherwise."""
    try:
        if path.exists() and not path.is_file():  # a pipe would keep us waiting for ever
            raise CheckpointError(f"{path.name}: it is no file; expected a JSON object in one")
        if path.exists() and path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path.name}: larger than {MAX_JSON_BYTES} bytes, which no such file should be")
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
        raise CheckpointError(f"{where}: {name}: got {brief(value)}, expected a number in [{low}, {high}]", param=name)
    return float(value)


def _integer(source: dict[str, Any], name: str, where: str, minimum: int) -> int | None:
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**40:
        raise CheckpointError(
            f"{where}: {name}: got {brief(value)}, expected an integer of at least {minimum}", param=name
        )
    return value


def _token_ids(source: dict[str, Any], name: str, where: str) -> tuple[int, ...]:
    value = source.get(name)
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
        raise CheckpointError(f"{where}: {name}: got {brief(value)}, expected a token id or a list of them", param=name)
    return tuple(listed)
