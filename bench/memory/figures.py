"""Figures of rounds: medians with their spread, goals, and the interval of a median ratio. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from rich.console import Console

from loadtest.report import new_table, percentile

RESAMPLES = 2000


@dataclass(frozen=True)
class Goal:
    """What a figure should reach."""

    words: str
    value: float
    sense: Literal["at least", "at most"]
    bound: float

    @property
    def is_met(self) -> bool:
        """Whether it does."""
        return self.value >= self.bound if self.sense == "at least" else self.value <= self.bound


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The median and, of several values, the lowest and the highest."""
    shown = [f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}" for value in _low_mid_high(values)]
    return shown[1] if len(values) == 1 else f"{shown[1]} ({shown[0]}-{shown[2]})"


def _low_mid_high(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), median(values), max(values)


def ratios(ours: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Round by round, so that a drift of the machine cancels."""
    return [mine / other for mine, other in zip(ours, baseline, strict=True)]


def interval(values: Sequence[float], share: float = 0.9) -> tuple[float, float]:
    """Bounds that hold the median with a probability of `share`, by resampling (Efron's bootstrap)."""
    rng = random.Random(0)
    medians = [median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return percentile(medians, (1 - share) / 2), percentile(medians, (1 + share) / 2)


def show_rows(console: Console, title: str, rows: Sequence[Mapping[str, Any]], markdown: bool) -> None:
    """A table with a column for each key of the first row."""
    console.print(title)
    table = new_table(markdown, *rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def show_goals(console: Console, goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """Prints a line for each goal. Returns the same as JSON."""
    for goal in goals:
        verdict = "pass" if goal.is_met else "SHORT"
        console.print(f"  {verdict}: {goal.words}: {goal.value:.3g}, goal {goal.sense} {goal.bound:g}")
    return [{**asdict(goal), "value": round(goal.value, 4), "is_met": goal.is_met} for goal in goals]
