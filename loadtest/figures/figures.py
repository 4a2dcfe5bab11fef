"""The figures of one run. docs/bench.md defines each of them. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtest.figures.distribution import Distribution, jain, milliseconds
from loadtest.figures.record import Counting, Ending, Record
from loadtest.figures.slo import Slos, meets

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "gap_ms", "e2e_ms", "held_ms")


@dataclass(frozen=True)
class Window:
    """The part of a run that is measured, [start_s, end_s)."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Its seconds; never 0, so that rates can be divided by it."""
        return max(self.end_s - self.start_s, 1e-9)

    def has(self, at_s: float) -> bool:
        """Whether a moment is in it."""
        return self.start_s <= at_s < self.end_s


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run. `unit` is "tokens", or "chunks" if tokens could not be counted. None: nothing to measure it by."""

    unit: str
    counted_by: tuple[str, ...]
    window_s: float
    num_sent: int
    endings: Mapping[str, int]
    errors: Mapping[str, int]  # by kind
    first_errors: Mapping[str, str]  # an example of each kind
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    gap_ms: Distribution | None
    e2e_ms: Distribution | None
    held_ms: Distribution | None
    tokens_per_s: float
    tokens_per_s_per_user: Distribution | None
    prompt_tokens_per_s: float | None
    requests_per_s: float
    goodput_per_s: float | None
    good_share: float | None
    fairness: float | None
    cached_share: float | None
    mean_prompt: float | None
    mean_answer: float | None

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def figures_of(records: Sequence[Record], window: Window, slos: Slos) -> Figures:
    """The figures of the requests that were sent in `window`, and of all that happened in it."""
    sent = [record for record in records if window.has(record.sent_s)]
    done = [record for record in sent if record.is_done]
    judged = [record for record in sent if record.ending is not Ending.CANCELLED]
    ended = [record for record in records if record.is_done and window.has(record.end_s)]
    failed = [record for record in sent if record.ending is Ending.FAILED]

    counted = sorted({str(record.counting) for record in records if record.arrivals})
    chunks = str(Counting.CHUNKS) in counted
    speeds = [1 / record.tpot_s for record in done if record.tpot_s]
    prompts = [record.num_prompt for record in ended if record.num_prompt is not None]
    good = sum(meets(record, slos) for record in judged) if slos else None

    return Figures(
        unit="chunks" if chunks else "tokens",
        counted_by=tuple(counted),
        window_s=window.length_s,
        num_sent=len(sent),
        endings={str(ending): sum(record.ending is ending for record in sent) for ending in Ending},
        errors=dict(Counter(record.kind for record in failed).most_common()),
        first_errors={record.kind: record.error for record in reversed(failed)},
        ttft_ms=_ms(record.ttft_s for record in done),
        itl_ms=Distribution.of(token_gaps(done) * 1e3),
        tpot_ms=_ms(record.tpot_s for record in done),
        gap_ms=_ms(record.gap_s for record in done),
        e2e_ms=_ms(record.e2e_s for record in done),
        held_ms=_ms(record.held_s for record in sent),
        tokens_per_s=tokens_in(records, window) / window.length_s,
        tokens_per_s_per_user=Distribution.of(speeds),
        prompt_tokens_per_s=sum(prompts) / window.length_s if prompts else None,
        requests_per_s=len(ended) / window.length_s,
        goodput_per_s=good / window.length_s if good is not None else None,
        good_share=good / len(judged) if good is not None and judged else None,
        fairness=jain([record.num_tokens / record.e2e_s for record in done if record.e2e_s]),
        cached_share=_cached_share(done),
        mean_prompt=float(np.mean(prompts)) if prompts else None,
        mean_answer=float(np.mean([record.num_tokens for record in done])) if done else None,
    )


def token_gaps(records: Iterable[Record]) -> "np.ndarray[Any, Any]":
    """Seconds between tokens. An event with k tokens after a gap g is k gaps of g/k."""
    gaps = []
    for record in records:
        if len(record.arrivals) > 1:
            counts = np.maximum(np.asarray(record.counts, int)[1:], 1)
            gaps.append(np.repeat(np.diff(np.asarray(record.arrivals)) / counts, counts))
    return np.concatenate(gaps) if gaps else np.empty(0)


def tokens_in(records: Iterable[Record], window: Window) -> int:
    """Tokens that arrived in the window, of all requests."""
    total = 0
    for record in records:
        if record.arrivals:
            arrivals = np.asarray(record.arrivals)
            inside = (arrivals >= window.start_s) & (arrivals < window.end_s)
            total += int(np.asarray(record.counts, int)[inside].sum())
    return total


def _ms(seconds: Iterable[float | None]) -> Distribution | None:
    return Distribution.of(milliseconds(seconds))


def _cached_share(records: Sequence[Record]) -> float | None:
    told = [(record.num_cached, record.num_prompt) for record in records if record.num_cached is not None]
    total = sum(num_prompt or 0 for _, num_prompt in told)
    return sum(num_cached for num_cached, _ in told) / total if total else None
