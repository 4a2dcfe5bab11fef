"""Whether the server is over-saturated: requests arrive faster than it answers them, and the queue grows. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from loadtest.figures.record import Record

LEAST_S = 20.0  # of what is judged
LEAST_ARRIVALS = 50
GROWTH = 0.1  # of the arrivals: what must stay behind
SLOWER = 1.5  # TTFT at the end, divided by TTFT at the beginning
_PARTS = 4
REFUSALS = ("HTTP 429", "HTTP 503")


@dataclass(frozen=True)
class Look:
    """The run at one moment: how many requests had been sent by then, and how many are in flight."""

    at_s: float
    num_sent: int
    in_flight: int


def saturation(looks: Sequence[Look], records: Sequence[Record]) -> str | None:
    """A sentence if the server cannot keep up, else None. `records`: the requests that have ended.

    Judges the last half of what was looked at. The server refuses a tenth of the arrivals; or the mean number in flight
    grows in each quarter, by a tenth of the arrivals in all, and the median TTFT by half. Chance makes one of these,
    rarely all of them.
    """
    if not looks:
        return None
    end, begin = looks[-1].at_s, (looks[0].at_s + looks[-1].at_s) / 2
    late = [look for look in looks if look.at_s >= begin]
    arrived = late[-1].num_sent - late[0].num_sent
    if end - begin < LEAST_S or arrived < LEAST_ARRIVALS:
        return None

    so_far = f"the server is over-saturated: in the last {end - begin:.0f} s, {arrived} requests arrived and"
    refused = [record for record in records if record.kind in REFUSALS and record.sent_s >= begin]
    if len(refused) > GROWTH * arrived:
        return f"{so_far} {len(refused)} were refused ({refused[-1].error})"

    means = _quarters(late, begin, end)
    grows = all(earlier < later for earlier, later in pairwise(means))
    if not means or not grows or means[-1] - means[0] < GROWTH * arrived or not _is_slower(records, begin, end):
        return None
    return f"{so_far} those in flight grew from {means[0]:.0f} to {means[-1]:.0f}"


def _quarters(looks: Sequence[Look], begin: float, end: float) -> list[float]:
    """The mean number in flight in each quarter. Empty if nobody looked in one of them."""
    edges = [begin + (end - begin) * part / _PARTS for part in range(_PARTS + 1)]
    quarters = [[look.in_flight for look in looks if low <= look.at_s <= high] for low, high in pairwise(edges)]
    return [mean(quarter) for quarter in quarters] if all(quarters) else []


def _is_slower(records: Sequence[Record], begin: float, end: float) -> bool:
    """Whether the median TTFT of the last quarter is half as long again as that of the first, if both have any."""
    quarter_s = (end - begin) / _PARTS
    firsts = [(record.arrivals[0], ttft) for record in records if (ttft := record.ttft_s) is not None]
    early = [ttft for at, ttft in firsts if begin <= at < begin + quarter_s]
    last = [ttft for at, ttft in firsts if at >= end - quarter_s]
    return not early or not last or median(last) >= SLOWER * median(early)
