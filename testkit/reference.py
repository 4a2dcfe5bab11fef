"""The tokens that transformers generates from a tiny checkpoint per architecture, computed once per test process.

The seeds are chosen so that the two best logits of every step are far apart. So equal greedy tokens mean that Baton is
right, and do not depend on luck with rounding.
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from testkit.checkpoints import WINDOW, WITH_WINDOWS, Architecture, greedy_reference, make_checkpoint

VOCAB_SIZE = 307
NUM_TOKENS = 64
MIN_MARGIN = 1e-3
# One token, less than a page, a page and its neighbours, a chunk of 32 and its neighbours, several chunks.
PROMPT_LENS = (1, 7, 15, 16, 33, 48, 90, 121)
EDGE_LENS = (WINDOW - 1, WINDOW, WINDOW + 1)  # beside those, where layers have windows
_SEEDS: dict[Architecture, int] = {
    "llama": 3,
    "mistral": 13,
    "qwen2": 1,
    "qwen3": 2,
    "qwen3_moe": 5,
    "mixtral": 1,
    "minimax_m2": 4,
    "glm4_moe": 1,
    "mistral_window": 7,
    "qwen3_window": 0,
    "gemma3": 0,
    "gpt_oss": 0,
}


@dataclass(frozen=True)
class Reference:
    """A checkpoint folder with the greedy continuation of each prompt, NUM_TOKENS long."""

    folder: Path
    prompts: tuple[tuple[int, ...], ...]
    continuations: tuple[tuple[int, ...], ...]


def random_prompts(lengths: Sequence[int] = PROMPT_LENS) -> tuple[tuple[int, ...], ...]:
    """One prompt of each length."""
    rng = random.Random(0)
    return tuple(tuple(rng.randrange(VOCAB_SIZE) for _ in range(length)) for length in lengths)


@cache
def _scratch() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="baton-reference-")  # removed when this process ends


@cache
def reference(arch: Architecture) -> Reference:
    """The reference of one architecture, in float32; a couple of seconds the first time in a process."""
    lengths = (*PROMPT_LENS, *EDGE_LENS) if arch in (*WITH_WINDOWS, "gpt_oss") else PROMPT_LENS
    return _reference(make_checkpoint(Path(_scratch().name) / arch, arch, seed=_SEEDS[arch]), lengths)


@cache
def reference_in_thirds() -> Reference:
    """That of a Llama whose MLP three ranks can share."""
    return _reference(make_checkpoint(Path(_scratch().name) / "thirds", "llama", seed=2, intermediate_size=96))


def _reference(folder: Path, lengths: Sequence[int] = PROMPT_LENS) -> Reference:
    prompts = random_prompts(lengths)
    continuations = greedy_reference(folder, prompts, NUM_TOKENS, min_margin=MIN_MARGIN)
    return Reference(folder, prompts, tuple(map(tuple, continuations)))
