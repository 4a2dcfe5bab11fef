"""The facts about a model folder that the gateway needs besides its tokenizer: lengths, end tokens, sampling defaults.

A missing file leaves its facts unknown; the workers bring their own limits. A damaged file is a CheckpointError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.errors import CheckpointError
from protocol.logit_rules import MAX_PENALTY, MIN_REPETITION_PENALTY, LogitRules
from protocol.messages_gateway import SamplingParams
from runtime.files import read_fields
from runtime.model_config import ModelBasics, config_facts, load_config, read_basics

# Settings of generation_config.json that Baton does not support, with their values that change nothing.
NOT_APPLIED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys("encoder_repetition_penalty num_beams typical_p guidance_scale".split(), (1,)),
    **dict.fromkeys("no_repeat_ngram_size epsilon_cutoff eta_cutoff min_length min_new_tokens".split(), (0,)),
    **dict.fromkeys("suppress_tokens begin_suppress_tokens bad_words_ids".split(), ([],)),
    "sequence_bias": ({},),
    **dict.fromkeys("forced_bos_token_id forced_eos_token_id exponential_decay_length_penalty".split(), ()),
}


@dataclass(frozen=True)
class ModelFolder:
    """Facts about one model."""

    path: Path
    basics: ModelBasics
    defaults: SamplingParams  # what generation_config.json sets
    not_applied: Mapping[str, Any] = field(default_factory=dict)  # unsupported settings of generation_config.json


def read_model_folder(path: Path) -> ModelFolder:
    """Reads the folder. CheckpointError names what is wrong."""
    if not path.is_dir():
        raise CheckpointError(f"model folder {str(path)!r} does not exist", param="model")

    generation = read_fields(path / "generation_config.json", optional=True)
    penalty = generation.number_within("repetition_penalty", MIN_REPETITION_PENALTY, MAX_PENALTY, default=1.0)
    defaults = SamplingParams(
        max_tokens=1,  # each request has its own
        temperature=generation.number_within("temperature", 0.0, 100.0, default=1.0),
        top_p=generation.number_within("top_p", 0.0, 1.0, default=1.0),
        top_k=generation.integer("top_k", default=0, minimum=0),
        min_p=generation.number_within("min_p", 0.0, 1.0, default=0.0),
        rules=None if penalty == 1 else LogitRules(repetition_penalty=penalty),
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
