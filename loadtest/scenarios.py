"""The scenarios and targets of the comparison with the peer, as tables, and the verdict on a target. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any, Literal

from loadtest.load import PlainLoad
from loadtest.report import Figures

OURS, PEER = "baton", "vllm"
VOCAB = 4096
UNIFIED = ("--prefill", "0", "--decode", "0", "--unified", "1")
PAIR = ("--prefill", "1", "--decode", "1", "--unified", "0")
START_OURS_S, START_PEER_S = 8.0, 60.0

Rounds = Mapping[tuple[str, str], Sequence[Figures]]  # by side and run: one entry per round


@dataclass(frozen=True)
class Run:
    """One load, given to both sides. `expected_s`: its time on two cores, for the estimate at the start."""

    name: str
    load: PlainLoad
    expected_s: float


@dataclass(frozen=True)
class Scenario:
    """Runs that one deployment of Baton serves in turn. `serve`: arguments of baton serve."""

    name: str
    serve: tuple[str, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Cell:
    """One figure of one side in one run."""

    side: str
    run: str
    figure: str


@dataclass(frozen=True)
class Target:
    """A bound for `over` divided by `under`: the median of the ratios of all rounds.

    `least_plausible`: a lower median cannot be true of the servers, so it shows that the machine was disturbed.
    """

    words: str
    over: Cell
    under: Cell
    kind: Literal["at least", "at most"]
    bound: float
    least_plausible: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The result for a target. The ratios are None if a side was absent or has no such figure."""

    target: Target
    ratio: float | None
    lowest: float | None
    highest: float | None

    @property
    def word(self) -> str:
        """pass, short, absent, or measure again."""
        if self.ratio is None:
            return "absent"
        if self.ratio < self.target.least_plausible:
            return "measure again"
        enough = self.ratio >= self.target.bound if self.target.kind == "at least" else self.ratio <= self.target.bound
        return "pass" if enough else "short"

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return {
            "target": self.target.words,
            "wanted": f"{self.target.kind} {self.target.bound:g}",
            "ratio": self.ratio,
            "lowest": self.lowest,
            "highest": self.highest,
            "verdict": self.word,
        }


_CROWD = PlainLoad(num_requests=64, concurrency=16, prompt_tokens=256, output_tokens=64, vocab=VOCAB, seed=1)
_ALONE = PlainLoad(num_requests=10, concurrency=1, prompt_tokens=256, output_tokens=64, vocab=VOCAB, seed=2)
_QUIET = PlainLoad(num_requests=32, concurrency=8, prompt_tokens=64, output_tokens=400, vocab=VOCAB, seed=3)
_DISTURBED = replace(_QUIET, seed=4, intruder_rate=1.0)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("unified", UNIFIED, (Run("crowd", _CROWD, 9), Run("alone", _ALONE, 6))),
    Scenario("pair", PAIR, (Run("quiet", _QUIET, 18), Run("disturbed", _DISTURBED, 38))),
)


def _against_peer(words: str, run: str, figure: str, kind: Literal["at least", "at most"], bound: float) -> Target:
    return Target(words, Cell(OURS, run, figure), Cell(PEER, run, figure), kind, bound)


TARGETS: tuple[Target, ...] = (
    _against_peer("16 clients: output tokens/s, Baton / vLLM", "crowd", "output_tokens_per_s", "at least", 1.3),
    _against_peer("16 clients: ITL p99, Baton / vLLM", "crowd", "itl_p99_ms", "at most", 1.5),
    _against_peer("1 client: TTFT p50, Baton / vLLM", "alone", "ttft_p50_ms", "at most", 1.0),
    _against_peer("1 client: ITL p50, Baton / vLLM", "alone", "itl_p50_ms", "at most", 1.0),
    Target(
        "disturbed: ITL p99.9, vLLM / Baton",
        Cell(PEER, "disturbed", "itl_p999_ms"), Cell(OURS, "disturbed", "itl_p999_ms"), "at least", 20.0,
    ),
    Target(
        "disturbed: ITL p99.9, Baton / Baton quiet",
        Cell(OURS, "disturbed", "itl_p999_ms"), Cell(OURS, "quiet", "itl_p999_ms"), "at most", 2.0,
        least_plausible=1.0,
    ),
    _against_peer("disturbed: output tokens/s, Baton / vLLM", "disturbed", "output_tokens_per_s", "at least", 1.5),
    _against_peer("disturbed: intruders' TTFT p50, Baton / vLLM", "disturbed", "intruder_ttft_p50_ms", "at most", 1.5),
)  # fmt: skip


def quick(scenarios: Sequence[Scenario]) -> tuple[Scenario, ...]:
    """Smaller loads that show that everything works. They measure nothing."""

    def smaller(run: Run) -> Run:
        load = run.load
        fewer = replace(load, num_requests=min(load.num_requests, 2 * load.concurrency), output_tokens=16)
        return replace(run, load=fewer, expected_s=5)

    return tuple(replace(each, runs=tuple(map(smaller, each.runs))) for each in scenarios)


def of_round(load: PlainLoad, number: int) -> PlainLoad:
    """The load of one round. Both sides get the same prompts, each round others, so that none is cached."""
    return replace(load, seed=load.seed + 1000 * number)


def expected_s(scenarios: Sequence[Scenario], rounds: int, with_peer: bool) -> float:
    """The expected time of a comparison, in seconds."""
    sides = 2 if with_peer else 1
    measuring = sum(run.expected_s for scenario in scenarios for run in scenario.runs) * sides
    starting = START_OURS_S + (START_PEER_S if with_peer else 0.0)
    return rounds * (measuring + starting * len(scenarios))


def judge(target: Target, rounds: Rounds) -> Verdict:
    """The median over rounds of the target's ratio, and its spread."""
    pairs = zip(_values(target.over, rounds), _values(target.under, rounds), strict=False)
    found = [over / under for over, under in pairs if under and isfinite(over) and isfinite(under)]
    if not found:
        return Verdict(target, None, None, None)
    ratio, lowest, highest = (round(value, 3) for value in (median(found), min(found), max(found)))
    return Verdict(target, ratio, lowest, highest)


def _values(cell: Cell, rounds: Rounds) -> list[float]:
    return [float(getattr(figures, cell.figure)) for figures in rounds.get((cell.side, cell.run), ())]
