"""The display while a run lasts: rates, percentiles, errors. It reads the run once a second."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadtest.drive.run import Progress, Run
from loadtest.figures.distribution import Distribution, milliseconds, number
from loadtest.figures.record import Ending

REFRESH_S = 1.0
RATE_S = 5  # rates are those of the last seconds
RECENT = 500  # requests that percentiles are made of


class LiveTable:
    """Makes the table from the run so far."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._before: deque[tuple[float, int, int]] = deque(maxlen=RATE_S + 1)  # (when, tokens, ended)

    def table(self, progress: Progress) -> Table:
        """The run at this moment."""
        records = progress.records
        num_tokens = progress.num_tokens + sum(heard.tokens_so_far for heard in progress.active)
        self._before.append((progress.now_s, num_tokens, len(records)))
        (then, tokens, ended), (now, *_) = self._before[0], self._before[-1]
        seconds = max(now - then, 1e-9)

        recent = records[-RECENT:]
        ttft = Distribution.of(milliseconds(record.ttft_s for record in recent))
        tpot = Distribution.of(milliseconds(record.tpot_s for record in recent))
        failed = [record for record in records if record.ending is Ending.FAILED]

        table = Table(title=self._title, title_justify="left", show_header=False)
        table.add_row("time", f"{progress.now_s:.0f} s")
        table.add_row(
            "requests", f"{progress.num_sent:,} sent, {progress.in_flight:,} in flight, {len(records):,} ended"
        )
        rates = [number(grown / seconds) for grown in (num_tokens - tokens, len(records) - ended)]
        table.add_row("rates", f"{rates[0]} tokens/s, {rates[1]} requests/s")
        table.add_row("TTFT", _words(ttft))
        table.add_row("TPOT", _words(tpot))
        table.add_row("errors", f"{len(failed):,}" + (f", last: {failed[-1].error[:80]}" if failed else ""))
        return table


def _words(distribution: Distribution | None) -> str:
    if distribution is None:
        return "-"
    tails = [
        f", {name} {number(value)}"
        for name, value in (("p90", distribution.p90), ("p99", distribution.p99))
        if value is not None
    ]
    return f"p50 {number(distribution.p50)}{''.join(tails)} ms"


@asynccontextmanager
async def shown_live(console: Console, run: Run, title: str) -> AsyncIterator[None]:
    """Shows the run while the block lasts. Without a terminal it shows nothing."""
    if not console.is_terminal:
        yield
        return
    made = LiveTable(title)
    with Live(made.table(run.progress), console=console, auto_refresh=False, transient=True) as live:
        showing = asyncio.create_task(_refresh(live, made, run))
        try:
            yield
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing


async def _refresh(live: Live, made: LiveTable, run: Run) -> None:
    while True:
        live.update(made.table(run.progress), refresh=True)
        await asyncio.sleep(REFRESH_S)
