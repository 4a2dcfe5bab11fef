"""The steps of `make gpu`, what is least known first, and how they share 15 minutes, or calls of six. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOTAL_S: Final = 15 * 60.0
STEP_S: Final = 8 * 60.0  # the greatest time limit of a step, when the later ones leave it so much
CALL_S: Final = 6 * 60.0  # of a machine that is lent for 15 minutes in all: two calls, and time to start it twice
START_S: Final = 30.0  # of a call: the interpreter, torch, the first contact with the device
WINDING_UP_S: Final = 15.0  # at the end of a step's time: no new part is begun


@dataclass(frozen=True)
class Step:
    """One step. `measure_NAME` in `module` of this package runs it in less than `seconds` on an H100; see `words`."""

    name: str
    module: str
    seconds: float
    words: str


STEPS: Final = (
    Step("smoke", "step_tests", 40, "imports, an answer over HTTP, a graph, a copy between processes"),
    Step("tests", "step_tests", 75, "the tests that need a device, side by side"),
    Step("handoff", "step_tests", 90, "the tests that need a device for themselves, one by one"),
    Step("trace", "step_trace", 30, "the kernels of a decode step by time, and the gaps between them"),
    Step("passes", "step_kernels", 45, "Triton's kernels beside torch's operations"),
    Step("experts", "step_experts", 25, "the experts of a layer, grouped, beside one product per expert"),
    Step("sampler", "step_sampler", 40, "draws, beside one read of the logits"),
    Step("drafts", "step_drafts", 50, "decode with a draft, and the bubble between extend and propose"),
    Step("prefill", "step_limits", 20, "prompts, beside the matrix-product peak"),
    Step("decode", "step_decode", 55, "decode steps, beside their limits"),
    Step("ipc", "step_limits", 40, "KV from process to process, beside a device copy"),
    Step("serve", "step_serve", 90, "a unified worker and a pair over HTTP"),
    Step("parity", "step_parity", 50, "tokens and logits beside transformers"),
)


def chosen(names: Sequence[str]) -> list[Step]:
    """The steps of these names, in their order; without names all. ValueError for an unknown name."""
    known = {step.name for step in STEPS}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"STEP: got {unknown[0]!r}, expected some of {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if step.name in names or not names]


def limit_s(steps: Sequence[Step], left_s: float) -> float:
    """The time limit of the first of `steps`, when all of them have `left_s` seconds. The later steps keep the seconds
    that they need. If the time is too short for all, all are scaled down alike. At most STEP_S, never negative."""
    needed_s = sum(step.seconds for step in steps)
    scale = min(1.0, max(0.0, left_s) / needed_s)
    return max(0.0, min(STEP_S, left_s - scale * (needed_s - steps[0].seconds)))


def calls(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps in calls of at most CALL_S each, the start of a call included. The order stays, except that a step goes
    into an earlier call that has room for it."""
    made: list[list[Step]] = []
    for step in steps:
        assert START_S + step.seconds <= CALL_S, f"{step.name} takes longer than a call"
        for call in made:
            if START_S + step.seconds + sum(planned.seconds for planned in call) <= CALL_S:
                call.append(step)
                break
        else:
            made.append([step])
    return made
