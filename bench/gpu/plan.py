"""The steps of `make gpu`, in order of value, and how 25 minutes are shared among them. Pure.

What it does not know: what a step does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOTAL_S: Final = 25 * 60.0
STEP_S: Final = 8 * 60.0
WINDING_UP_S: Final = 15.0  # of a step's time, in which it begins no new part


@dataclass(frozen=True)
class Step:
    """`module` of this package measures it in about `seconds` on an H200; `words` say what."""

    name: str
    module: str
    seconds: float
    words: str


STEPS: Final = (
    Step("tests", "step_tests", 300, "the tests that need a device"),
    Step("parity", "step_parity", 210, "tokens and logits beside transformers"),
    Step("decode", "step_decode", 330, "decode steps, beside the floor"),
    Step("prefill", "step_prefill", 90, "prompts, beside the matrix-product peak"),
    Step("ipc", "step_ipc", 90, "KV from process to process, beside a device copy"),
    Step("serve", "step_serve", 330, "a unified worker and a pair over HTTP"),
    Step("profile", "step_profile", 60, "a trace of decode steps"),
)


def chosen(names: Sequence[str]) -> list[Step]:
    """The steps of these names in their order; all without names. ValueError names one that does not exist."""
    known = {step.name for step in STEPS}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"STEP: got {unknown[0]!r}, expected some of {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if not names or step.name in names]


def limit_s(steps: Sequence[Step], left_s: float) -> float:
    """How long the first of `steps` may take when `left_s` seconds are left to all of them. The seconds that the later
    steps need are kept for them. Where the time is too short for all, every step's seconds are scaled down alike. At
    most STEP_S, never negative."""
    needed_s = sum(each.seconds for each in steps)
    scale = min(1.0, max(0.0, left_s) / needed_s)
    return max(0.0, min(STEP_S, left_s - scale * (needed_s - steps[0].seconds)))
