"""The quiet phase: each request alone, three times, and scored. It gives the known answers and the near tie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from loadtest.verify.answers import Choice, Heard
from loadtest.verify.judge import Place
from loadtest.verify.phases import Made
from loadtest.verify.ties import (
    LIMIT,
    Noise,
    differences,
    noise_of,
    noise_of_scoring,
    scored_differences,
    step_of,
)  # fmt: skip

REPEAT = "repeat"
HUNG_FACTOR = 5


@dataclass
class Tried:
    """One request of the quiet phase: the first answer is not streamed and finds no cache. `scores`: what each oracle
    says of an answer, by its tokens."""

    made: Made
    heards: list[Heard] = field(default_factory=list)
    scores: dict[str, dict[tuple[object, ...], list[Place]]] = field(default_factory=dict)

    @property
    def answers(self) -> list[Choice]:
        """Those that have ended."""
        return [heard.answer()[0] for heard in self.heards if heard.done and 0 in heard.tokens]

    @property
    def distinct(self) -> list[Choice]:
        """Answers with other tokens than those before."""
        return list({choice.tokens: choice for choice in reversed(self.answers)}.values())[::-1]


def calibrate(tried: Sequence[Tried], scorers: Sequence[str]) -> dict[str, Noise]:
    """The near tie of each oracle. That of the repeats is at least that of the server's own scoring."""
    step = step_of([top for one in tried for choice in one.answers[:1] for top in choice.tops])
    noises = {}
    for name in scorers:
        pairs = [
            scored_differences(choice, one.scores[name][choice.tokens])
            for one in tried
            for choice in one.distinct
            if choice.tokens in one.scores.get(name, {})
        ]
        noises[name] = noise_of_scoring([margins for margins, _ in pairs], [drifts for _, drifts in pairs], step)

    lists = [_apart(one.answers, is_scored=bool(scorers)) for one in tried]
    half = len(lists) // 2
    repeats = noise_of(list(chain(*lists[:half])), list(chain(*lists[half:])), step)
    scored = max([noises[name].tau for name in scorers if name != "folder"], default=0.0)
    tau, is_settled = max(repeats.tau, scored), repeats.is_settled or repeats.largest <= scored
    noises[REPEAT] = replace(repeats, tau=tau, is_settled=is_settled)
    if "rescore" in noises:
        noises["rescore"] = replace(noises["rescore"], tau=tau)
    return noises


def hung_after(tried: Sequence[Tried], hung_s: float) -> float:
    """How long an answer under load may take."""
    return hung_s + HUNG_FACTOR * max((heard.took_s for one in tried for heard in one.heards), default=0.0)


def early(tried: Sequence[Tried]) -> float:
    """A time before which a streamed answer has hardly begun: half of what the first token took when it was quiet."""
    return min((heard.first_s for one in tried for heard in one.heards if heard.first_s is not None), default=0.02) / 2


def contradictions(answers: Sequence[Choice]) -> list[Choice]:
    """Answers of the quiet server that are further than noise from the first one."""
    return [
        choice
        for choice in answers[1:]
        if any(not difference <= LIMIT for difference in differences(answers[0], choice))
    ]


def unsettled(noises: Mapping[str, Noise]) -> list[str]:
    """Oracles whose second half was beyond what the first half had shown."""
    return [name for name, noise in noises.items() if not noise.is_settled and not noise.why]


def _apart(answers: Sequence[Choice], *, is_scored: bool) -> list[float]:
    """How far the repeats are from the first answer. What is beyond LIMIT is judged by scoring, where there is any."""
    apart = [value for choice in answers[1:] for value in differences(answers[0], choice)]
    return [value for value in apart if value <= LIMIT] if is_scored else apart
