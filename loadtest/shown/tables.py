"""What the terminal shows of a run and of a comparison."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.figures.distribution import number
from loadtest.figures.figures import LATENCIES
from loadtest.figures.intervals import Row
from loadtest.measure import Measured

NAMES = {
    "ttft_ms": "TTFT", "itl_ms": "ITL", "tpot_ms": "TPOT", "gap_ms": "worst gap", "e2e_ms": "E2E", "held_ms": "held",
}  # fmt: skip
COLUMNS = ("mean", "p50", "p90", "p99", "p99.9", "max", "count")
MOST_ERRORS = 5


def show_run(console: Console, measured: Measured, *, markdown: bool = False) -> None:
    """The figures of one run, or why there are none."""
    if measured.refusal:
        console.print(f"no figures: {measured.refusal}", style="bold red")
    else:
        console.print(latency_table(measured, markdown=markdown))
    for line in lines_of(measured):
        console.print(line)
    if measured.progress.why:
        console.print(f"stopped after {measured.progress.now_s:.1f} s: {measured.progress.why}", style="bold red")


def latency_table(measured: Measured, *, markdown: bool = False) -> Table:
    """A row for each latency."""
    figures = measured.figures
    unit = "" if figures.unit == "tokens" else f" (of {figures.unit})"
    table = new_table(markdown, f"ms{unit}", *COLUMNS)
    for row in latency_rows(measured):
        table.add_row(*row)
    return table


def latency_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    """A row for each latency of which there are values: its name, numbers under COLUMNS."""
    named = {NAMES[name]: getattr(measured.figures, name) for name in LATENCIES}
    named["TTFT of long prompts"] = measured.beside and measured.beside.ttft_ms
    for name, distribution in named.items():
        if distribution is not None and (name != NAMES["held_ms"] or distribution.most >= 1):
            values = (
                distribution.mean,
                distribution.p50,
                distribution.p90,
                distribution.p99,
                distribution.p999,
                distribution.most,
            )
            yield name, *map(number, values), f"{distribution.count:,}"


def lines_of(measured: Measured) -> Iterator[str]:
    """What is no latency, as sentences: how the requests ended, what they came to, how busy this client was."""
    figures = measured.figures
    ended = figures.endings
    told = [f"{ended[name]:,} {name}" for name in ("done", "failed", "cancelled", "unfinished") if ended[name]]
    yield f"{figures.num_sent:,} requests in {figures.window_s:.1f} s: {', '.join(told) or 'none'}"
    if not measured.refusal:
        yield from _rates(measured)
    for kind, count in list(figures.errors.items())[:MOST_ERRORS]:
        yield f"{counted(count, 'request')} failed ({kind}): {figures.first_errors[kind]}"
    yield _own_words(measured)
    if not measured.refusal and (warning := measured.own.warning(figures)):
        yield f"warning: {warning}"


def _rates(measured: Measured) -> Iterator[str]:
    figures, unit = measured.figures, measured.figures.unit
    user = figures.tokens_per_s_per_user
    yield (
        f"{number(figures.tokens_per_s)} {unit}/s"
        + (f", {number(user.p50)} {unit}/s per user (p50)" if user else "")
        + f", {number(figures.requests_per_s)} requests/s"
        + (f", {number(figures.prompt_tokens_per_s)} prompt tokens/s" if figures.prompt_tokens_per_s else "")
    )
    if figures.goodput_per_s is not None:
        slos = " ".join(f"{name}:{limit:g}" for name, limit in measured.load.slos.items())
        yield f"goodput {number(figures.goodput_per_s)} requests/s, {figures.good_share or 0:.1%} of all ({slos})"
    others = [("fairness", figures.fairness, ".3f"), ("cached share of the prompts", figures.cached_share, ".1%")]
    if known := [f"{words} {value:{form}}" for words, value, form in others if value is not None]:
        yield ", ".join(known)
    if beside := measured.beside:
        told = [f"{count:,} {ending}" for ending, count in beside.endings.items() if count]
        yield f"{beside.num_sent:,} long prompts: {', '.join(told) or 'none'}"
    if exact := measured.exactness:
        yield f"exactness: {exact.num_compared} answers compared with the first pass, {exact.num_wrong} were others"
    if unit == "chunks":
        yield "chunks, not tokens: the endpoint does not say how many tokens an event has (--tokenizer DIR counts them)"
    else:
        yield f"tokens counted by {', '.join(figures.counted_by) or 'nothing: none came'}"


def _own_words(measured: Measured) -> str:
    own = measured.own
    machine = f", all {own.num_cores} cores of this machine were used by {own.machine:.0%}" if own.machine else ""
    return f"this client: {own.core:.0%} of a core, woke {own.lag_p99_ms:.1f} ms late (p99){machine}"


def compare_table(rows: Sequence[Row], *, markdown: bool = False) -> Table:
    """A row for each figure of both reports."""
    table = new_table(markdown, "figure", "A", "B", "B / A", "95% interval")
    for row in rows:
        interval = f"{row.low:.3f} to {row.high:.3f}" if row.low is not None and row.high is not None else "-"
        ratio = f"{row.ratio:.3f}" if row.ratio is not None else "-"
        table.add_row(row.words, number(row.a), number(row.b), ratio, interval + (" *" if row.differs else ""))
    return table


def new_table(markdown: bool, *columns: str) -> Table:
    """An empty table, numbers aligned right. As Markdown it can be pasted into a page."""
    table = Table(box=box.MARKDOWN) if markdown else Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    return table


def counted(count: int, noun: str) -> str:
    """`1 round`, `3 rounds`."""
    return f"{count} {noun}{'s' * (count != 1)}"
