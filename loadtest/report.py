"""What comparisons tell of a run: percentiles, throughput, medians over rounds, and their tables. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from statistics import median

from rich import box
from rich.table import Table

from loadtest.figures.distribution import percentile, tail
from loadtest.figures.figures import token_gaps
from loadtest.figures.record import Ending, Record
from loadtest.measure import Measured

_SAID_APART = ("num_errors", "first_error")  # of the fields below: not medians of rounds


@dataclass(frozen=True)
class Figures:
    """One round of one side. Latencies in milliseconds; throughput counts output tokens of successful answers.

    A tail (p99, p99.9) is NaN if there are too few values to tell it from the maximum.
    """

    num_ok: int
    num_errors: int
    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    ttft_max_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    itl_p999_ms: float
    itl_max_ms: float
    e2e_p50_ms: float
    num_intruders: int
    intruder_ttft_p50_ms: float
    intruder_ttft_max_ms: float
    client_cpu_us_per_token: float
    client_late_p99_ms: float
    first_error: str


def figures(measured: Measured) -> Figures:
    """The figures of a round."""
    cpu_s = measured.own.core * measured.own.seconds
    found = figures_of(measured.records, measured.window.length_s, measured.beside_records, cpu_s)
    return replace(found, client_late_p99_ms=measured.own.lag_p99_ms)


def figures_of(
    records: Sequence[Record], duration_s: float, intruders: Sequence[Record] = (), client_cpu_s: float = 0.0
) -> Figures:
    """The figures of a round of `duration_s` seconds. TTFT and E2E count from when a request was due. An intruder that
    has no answer yet has waited until the end. `client_cpu_s`: CPU time of the measuring client."""
    good = [record for record in records if record.is_done]
    ttft = [(record.arrivals[0] - record.due_s) * 1e3 for record in good]
    itl = (token_gaps(good) * 1e3).tolist()
    failed = [record for record in (*records, *intruders) if record.ending is Ending.FAILED]
    waits = [
        ((record.arrivals[0] if record.arrivals else record.end_s) - record.due_s) * 1e3
        for record in intruders
        if record.ending is not Ending.FAILED
    ]
    num_tokens = sum(record.num_tokens for record in good)

    return Figures(
        num_ok=len(good),
        num_errors=len(failed),
        output_tokens_per_s=num_tokens / duration_s,
        ttft_p50_ms=percentile(ttft, 0.5),
        ttft_p99_ms=tail(ttft, 0.99),
        ttft_max_ms=_max(ttft),
        itl_p50_ms=percentile(itl, 0.5),
        itl_p99_ms=tail(itl, 0.99),
        itl_p999_ms=tail(itl, 0.999),
        itl_max_ms=_max(itl),
        e2e_p50_ms=percentile([(record.arrivals[-1] - record.due_s) * 1e3 for record in good], 0.5),
        num_intruders=len(intruders),
        intruder_ttft_p50_ms=percentile(waits, 0.5),
        intruder_ttft_max_ms=_max(waits),
        client_cpu_us_per_token=client_cpu_s * 1e6 / num_tokens if num_tokens else float("nan"),
        client_late_p99_ms=float("nan"),
        first_error=failed[0].error if failed else "",
    )


def _max(values: Sequence[float]) -> float:
    return max(values, default=float("nan"))


def median_figures(rounds: Sequence[Figures]) -> dict[str, float | None]:
    """The median of each figure over rounds, None if it has no value. Errors are added up."""
    rows = [asdict(each) for each in rounds]
    names = [name for name in rows[0] if name not in _SAID_APART]
    medians = {name: _rounded(median(row[name] for row in rows), 2) for name in names}
    return medians | {"num_errors": sum(row["num_errors"] for row in rows)}


def _rounded(value: float, digits: int) -> float | None:
    return round(float(value), digits) if isfinite(value) else None


def ratios(ours: Sequence[Figures], baseline: Sequence[Figures]) -> dict[str, float | None]:
    """Median over rounds of ours / baseline. Comparing round by round cancels a drift of the machine."""
    found: dict[str, float | None] = {}
    for name in ("output_tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms"):
        pairs = [
            getattr(mine, name) / getattr(other, name)
            for mine, other in zip(ours, baseline, strict=True)
            if getattr(other, name)
        ]
        found[name] = _rounded(median(pairs), 3) if pairs else None
    return found


# ---- tables ----


def new_table(markdown: bool, *columns: str) -> Table:
    """An empty table, numbers aligned right. As Markdown it can be pasted into a page."""
    table = Table(box=box.MARKDOWN) if markdown else Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def figures_table(
    sides: Mapping[str, Sequence[Figures]], more: Mapping[str, Mapping[str, float | None]], markdown: bool
) -> Table:
    """A row for each figure: by side the median and, over several rounds, the spread; then further columns."""
    table = new_table(markdown, "figure", *sides, *more)
    for name in (field.name for field in fields(Figures) if field.name not in _SAID_APART):
        values = {side: [float(getattr(each, name)) for each in rounds] for side, rounds in sides.items()}
        if any(isfinite(value) and value for of_side in values.values() for value in of_side):
            ratios_of = [_number(of_figure[name]) if name in of_figure else "" for of_figure in more.values()]
            table.add_row(name, *(_spread(of_side) for of_side in values.values()), *ratios_of)
    return table


def failures(sides: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """A line for each side with failed requests: how many, and why the first of them failed."""
    for side, rounds in sides.items():
        if first := next((each.first_error for each in rounds if each.first_error), ""):
            yield f"{side}: {sum(each.num_errors for each in rounds)} requests failed: {first}"


def counted(number: int, noun: str) -> str:
    """`1 round`, `3 rounds`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _spread(values: Sequence[float]) -> str:
    middle = _number(median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float | None) -> str:
    """Three significant digits."""
    if value is None or not isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
