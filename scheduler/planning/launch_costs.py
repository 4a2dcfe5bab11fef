"""What a launch costs, by its rows and proposals: as timed at the start, corrected by what launches take since.

At the start launches run alone. Later the host works beside some and is waited for by others, so that only the time
between two results tells what a launch costs. Where the executor notes when forwards end, it is the time between these
ends: a host that reads one result late reads the next one early. It counts where both launches are of one kind and
size, and have a choice in common: as many proposals, no chunks. A **size** is a power of two of rows: [1, 2), [2, 4),
[4, 8), ...
A **plain** launch has no row with a draft; one that proposes nothing, and keeps the draft's KV, is **quiet**.

Whether proposals pay depends on how kinds of launches compare. The start has compared them in turns, alone. Later each
kind is timed at another time, beside other work. So what a few launches say against the start counts in part only.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

KEPT: Final = 24  # the newest launches of a kind, whose mean counts
FEW: Final = 4  # fewer tell nothing yet
DOUBT: Final = 1  # of n launches: where kinds are compared, their ratio has the exponent n / (n + DOUBT)
PLAIN: Final = -1  # the kind of a plain launch; any other has the number of its proposals
MOST: Final = 1.3  # times their lower quartile: one that took longer was held up by others, and counts as so long


@dataclass(frozen=True)
class StepCosts:
    """Seconds of launches, as measured at the start: seconds[i][s] of num_rows[i] rows with s proposals each, and
    plain[i] of such plain launches. Without `plain` they are taken to last as long as quiet ones. `prompt_token_s`:
    those of a token of a prompt, without a draft and with one."""

    num_rows: tuple[int, ...]  # ascending
    seconds: tuple[tuple[float, ...], ...]
    plain: tuple[float, ...] = ()
    prompt_token_s: tuple[float, float] = (0.0, 0.0)

    def launch_s(self, num_rows: int) -> list[float]:
        """[s]: a launch of so many rows with s proposals each. One that proposes more never takes less: what was
        measured may have been disturbed."""
        return list(accumulate(self._on_lines(self.seconds, num_rows), max))

    def plain_s(self, num_rows: int) -> float:
        """A plain launch of so many rows."""
        return self._on_lines([(seconds,) for seconds in self.plain] or self.seconds, num_rows)[0]

    def _on_lines(self, seconds: Sequence[Sequence[float]], num_rows: int) -> list[float]:
        """Each column of `seconds`, on the line through the two nearest sizes."""
        if len(self.num_rows) == 1:
            return list(seconds[0])
        right = min(max(1, bisect_left(self.num_rows, num_rows)), len(self.num_rows) - 1)
        start, end = self.num_rows[right - 1 : right + 1]
        part = (num_rows - start) / (end - start)
        lines = zip(*seconds[right - 1 : right + 1], seconds[0], strict=True)
        return [max(low + part * (high - low), least) for low, high, least in lines]


class _Ratio:
    """How much longer launches take than at the start."""

    def __init__(self) -> None:
        self._newest = deque[float](maxlen=KEPT)
        self.mean = 1.0
        self.count = 0

    def add(self, ratio: float) -> None:
        self._newest.append(ratio)
        self.count += 1
        most = MOST * sorted(self._newest)[len(self._newest) // 4]
        self.mean = sum(min(ratio, most) for ratio in self._newest) / len(self._newest)

    @property
    def is_known(self) -> bool:
        return self.count >= FEW

    def beside(self, reference: "_Ratio") -> float:
        """How much longer they take than those of `reference`, beside what the start says."""
        return float((self.mean / reference.mean) ** (self.count / (self.count + DOUBT)))


_NOT_TIMED: Final = _Ratio()
Ratios = dict[int, _Ratio]  # by kind


@dataclass(eq=False)
class LaunchCosts:
    """Costs of one worker's launches. `over` is called for every launch, in their order."""

    at_start: StepCosts
    _ratios: dict[int, Ratios] = field(init=False, default_factory=dict)  # by size
    _newest: tuple[Sequence[object], int] = field(init=False, default=((), 0))  # rows and kind of the last launch
    _newest_at: float = field(init=False, default=0.0)
    _line: tuple[int, list[float]] = field(init=False, default_factory=lambda: (0, []))  # at_start for so many rows

    def over(self, rows: Sequence[object], kind: int, now: float) -> None:
        """The result of a launch of these rows came, or was computed, at `now`. Without rows: of one that is like no
        other. `kind`: its proposals, or PLAIN."""
        (rows_before, kind_before), taken_s = self._newest, now - self._newest_at
        self._newest, self._newest_at = (rows, kind), now
        if not rows or kind != kind_before or size_of(len(rows)) != size_of(len(rows_before)):
            return
        if rows is not rows_before and rows[0] not in rows_before:  # those that go on come first
            return
        if taken_s <= 0.0:  # by a clock that is too coarse
            return
        expected_s = self._at_start(len(rows))[kind]
        self._ratios.setdefault(size_of(len(rows)), {}).setdefault(kind, _Ratio()).add(taken_s / expected_s)

    def is_known(self, num_rows: int, kind: int) -> bool:
        """Whether launches of this size and of this kind were timed. All that propose something are one kind."""
        return bool(self._known(size_of(num_rows), _column(kind)))

    def launch_s(self, num_rows: int) -> list[float]:
        """[s]: a launch of so many rows with s proposals each. It is corrected by the launches of the nearest number of
        proposals, of this size if some were timed."""
        seconds, reference = self._at_start(num_rows)[:PLAIN], self._reference(size_of(num_rows)).mean
        quiet, proposing = (self._compared(size_of(num_rows), column) for column in (0, 1))
        ratios = [_nearest(proposing if steps else quiet, steps) for steps in range(len(seconds))]
        return [launch_s * reference * ratio for launch_s, ratio in zip(seconds, ratios, strict=True)]

    def plain_s(self, num_rows: int) -> float:
        """A plain launch of so many rows. Until some of this size are timed, it takes no longer than a quiet one."""
        size, at_start = size_of(num_rows), self._at_start(num_rows)
        plain_s = at_start[PLAIN] * _nearest(self._compared(size, PLAIN), PLAIN)
        if not self._known(size, PLAIN):
            plain_s = min(plain_s, at_start[0] * _nearest(self._compared(size, 0), 0))
        return plain_s * self._reference(size).mean

    def _at_start(self, num_rows: int) -> list[float]:
        """By kind: proposals, then PLAIN as the last one."""
        if self._line[0] != num_rows:
            self._line = num_rows, [*self.at_start.launch_s(num_rows), self.at_start.plain_s(num_rows)]
        return self._line[1]

    def _known(self, size: int, column: int) -> Ratios:
        ratios = self._ratios.get(size, {})
        return {kind: ratio for kind, ratio in ratios.items() if ratio.is_known and _column(kind) == column}

    def _reference(self, size: int) -> _Ratio:
        """Of the kind of this size, or of the nearest one, that was timed most often: how slow the machine is."""
        for other in sorted(self._ratios, key=lambda other: (abs(other - size), other)):
            if known := [ratio for ratio in self._ratios[other].values() if ratio.is_known]:
                return max(known, key=lambda ratio: ratio.count)
        return _NOT_TIMED

    def _compared(self, size: int, column: int) -> dict[int, float]:
        """By kind: how much longer its launches take than those of the reference of their size, beside what the start
        says. Those of this size, or else of the nearest one that is known, or none."""
        for other in sorted(self._ratios, key=lambda other: (abs(other - size), other)):
            if known := self._known(other, column):
                reference = self._reference(other)
                return {kind: ratio.beside(reference) for kind, ratio in known.items()}
        return {}


def _column(kind: int) -> int:
    """PLAIN, 0 for quiet launches, 1 for all that propose something."""
    return min(kind, 1)


def size_of(num_rows: int) -> int:
    """The size of launches of so many rows."""
    return num_rows.bit_length()


def _nearest(known: dict[int, float], kind: int) -> float:
    return known[min(known, key=lambda other: (abs(other - kind), other))] if known else 1.0
