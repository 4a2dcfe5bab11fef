"""The facts about a model folder that the gateway needs besides its tokenizer: lengths, end tokens, sampling defaults.

A missing file leaves its facts unknown; the workers bring their own limits. A damaged file is a CheckpointError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.errors import CheckpointError
from runtime.json_fields import read_fields
from runtime.model_config import ModelBasics, config_facts, load_config, read_basics

# Settings of generation_config.json that Baton does not support, with their values that change nothing.
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
    """Sampling settings of generation_config.json; None if it does not set them."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclass(frozen=True)
class ModelFolder:
    """Facts about one model."""

    path: Path
    basics: ModelBasics
    defaults: SamplingDefaults
    not_applied: Mapping[str, Any] = field(default_factory=dict)  # unsupported settings of generation_config.json


def read_model_folder(path: Path) -> ModelFolder:
    """Reads the folder. CheckpointError names what is wrong."""
    if not path.is_dir():
        raise CheckpointError(f"model folder {str(path)!r} does not exist", param="model")

    generation = read_fields(path / "generation_config.json", optional=True)

    def number(name: str, high: float) -> float | None:
        return generation.number_within(name, 0.0, high) if generation.has(name) else None

    defaults = SamplingDefaults(
        temperature=number("temperature", 100.0),
        top_p=number("top_p", 1.0),
        top_k=generation.integer("top_k", minimum=0) if generation.has("top_k") else None,
        min_p=number("min_p", 1.0),
    )

    not_applied = {
        name: generation.values[name]
        for name, neutral in NOT_APPLIED.items()
        if generation.has(name) and generation.values[name] not in neutral
    }

    return ModelFolder(path, read_basics(path), defaults, not_applied)


def model_facts(path: Path) -> dict[str, str]:
    """The configuration as in workers' Fingerprint.facts; {} if config.json names no architecture. CheckpointError if
    no worker could serve it."""
    if not read_basics(path).names_architecture:
        return {}
    return config_facts(load_config(path, context_length=2))  # shorter than any sliding window, so that none applies
