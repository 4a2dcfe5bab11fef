"""Records of requests that went exactly by a schedule."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from loadtest.figures.record import Counting, Ending, Record


@dataclass(frozen=True)
class Schedule:
    """When an answer's events come: the first after `ttft_s`, then one each `itl_s`, with `per_event` tokens each."""

    ttft_s: float = 0.2
    itl_s: float = 0.05
    num_events: int = 5
    per_event: int = 1


def record(sent_s: float, schedule: Schedule = Schedule(), **fields: Any) -> Record:
    """A request that is done, unless `fields` say otherwise."""
    arrivals = [sent_s + schedule.ttft_s + number * schedule.itl_s for number in range(schedule.num_events)]
    return recorded(sent_s, arrivals, [schedule.per_event] * schedule.num_events, **fields)


def answered(ttft_s: float, gaps: Sequence[float] = (), num_tokens: int | None = None) -> Record:
    """A request sent at 0: its first event, then one after each gap. The last event has all tokens that are left."""
    arrivals = list(accumulate((ttft_s, *gaps)))
    counts = [1] * len(arrivals)
    counts[-1] += (num_tokens or len(arrivals)) - len(arrivals)
    return recorded(0.0, arrivals, counts)


def failed(error: str) -> Record:
    """A request without an answer."""
    return recorded(0.0, [], [], ending=Ending.FAILED, kind=error, error=error)


def recorded(sent_s: float, arrivals: Sequence[float], counts: Sequence[int], **fields: Any) -> Record:
    """A request with these events."""
    end_s = arrivals[-1] if arrivals else sent_s
    known = {"conversation": 0, "turn": 0, "due_s": sent_s, "sent_s": sent_s, "end_s": end_s, "counting": Counting.IDS}
    return Record(arrivals=array("d", arrivals), counts=array("l", counts), **{**known, **fields})
