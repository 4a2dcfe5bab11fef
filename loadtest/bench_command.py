"""`baton bench`: runs a load and writes its report, or compares two reports.

Exit statuses: 0; 1 if a request failed, an answer was wrong, figures were refused or the run stopped itself; 2 for
wrong flags or an endpoint that is of no use; 130 for Ctrl-C, with the report of what ran.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import uvloop
from rich.console import Console

from loadtest.bench_flags import Parser, bench_parser, sweep_flags
from loadtest.bench_load import PATHS, fields_of, history_of, load_of
from loadtest.drive.recount import load_tokenizer
from loadtest.drive.run import Run
from loadtest.drive.server import find_model
from loadtest.drive.talk import Asking
from loadtest.figures.intervals import compare, sentence
from loadtest.figures.record import Ending
from loadtest.http_exchange import Connections, Server
from loadtest.measure import RUN_SEED, Endpoint, Load, Measured, measure, prepared
from loadtest.search import Search, search_of
from loadtest.shown.environment import environment
from loadtest.shown.files import read_report, report_json, write_report
from loadtest.shown.live import shown_live
from loadtest.shown.page import page_of
from loadtest.shown.picture import picture_of
from loadtest.shown.tables import compare_table, show_run
from loadtest.topologies import run_each, topologies_table
from runtime.clock import MonotonicClock
from runtime.keys import read_api_keys

EXIT_FAILED, EXIT_CONFIG, EXIT_CTRL_C = 1, 2, 130
WIDTH = 140  # of tables in a pipe
CTRL_C = "Ctrl-C"
RESULTS = Path("bench-results")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_command(typed: Sequence[str]) -> int:
    """`baton bench [run]`. ConfigError for what cannot be run."""
    return _run(bench_parser().parse_args(typed), typed, None)


def sweep_command(typed: Sequence[str]) -> int:
    """`baton bench sweep`: the largest rate at which enough requests meet the objectives."""
    parser = bench_parser("sweep")
    sweep_flags(parser)
    asked = parser.parse_args(typed)
    return _run(asked, ["sweep", *typed], search_of(asked))


def _run(asked: argparse.Namespace, typed: Sequence[str], search: Search | None) -> int:
    """The load on one endpoint; or on each deployment of `--serve`, with their figures side by side."""
    console = new_console()
    if asked.serve is None:
        return uvloop.run(Session(asked, typed, console, search).run())

    async def one_of_them(one: argparse.Namespace, serve: str) -> tuple[int, list[Measured]]:
        console.print(f"\nbaton serve {serve}")
        session = Session(one, typed, console, search)
        return await session.run(), session.runs

    load_of(asked, None)  # what is wrong in the flags is told before anything is started
    folder = None if asked.out == "none" else _folder(asked.out)
    all_served = uvloop.run(run_each(asked, one_of_them, folder))
    console.print(topologies_table(all_served, search, markdown=asked.markdown))
    if folder is not None:
        (folder / "picture.html").write_text(
            picture_of([(served.serve, served.runs) for served in all_served if served.runs])
        )
        console.print(f"side by side: {folder / 'picture.html'}")
    return max(served.status for served in all_served)


def compare_command(typed: Sequence[str]) -> int:
    """`baton bench compare A B`."""
    parser = Parser(prog="baton bench compare", description="Says what differs between two reports.")
    parser.add_argument("a", metavar="A.json", help="report.json, or the folder that has it")
    parser.add_argument("b", metavar="B.json", help="the same; B is divided by A")
    parser.add_argument("--markdown", action="store_true", help="a table that can be pasted into a page")
    asked = parser.parse_args(typed)

    (runs_a, rates_a), (runs_b, rates_b) = read_report(asked.a), read_report(asked.b)
    rows = compare(runs_a, runs_b, {name: (rates_a[name], rates_b[name]) for name in rates_a})
    console = new_console()
    console.print(compare_table(rows, markdown=asked.markdown))
    console.print(sentence(rows, (len(runs_a), len(runs_b))))
    return 0


class Session:
    """One call of `baton bench run`: its endpoint, its runs, its report."""

    def __init__(
        self, asked: argparse.Namespace, typed: Sequence[str], console: Console, search: Search | None = None
    ) -> None:
        self._asked = asked
        self._typed = typed
        self._console = console
        self._search = search
        self._clock = MonotonicClock()
        self.running: Run | None = None
        self.runs: list[Measured] = []
        self._was_stopped = False

    async def run(self) -> int:
        """Runs the load as often as asked, and writes the report. Returns the exit status."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop, task)
        try:
            return await self._measured()
        except asyncio.CancelledError:  # Ctrl-C before the first run
            return EXIT_CTRL_C
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def _measured(self) -> int:
        endpoint, load = await self._prepare()
        runs = self.runs
        try:
            while (one := self._next_load(load, runs)) is not None:
                runs.append(await self._one(endpoint, one, len(runs)))
                if self._was_stopped:
                    break
        except asyncio.CancelledError:  # between two runs
            if not runs:
                raise
            self._was_stopped = True
        sentences = self._search.sentences(runs) if self._search else []
        for line in sentences:
            self._console.print(line)
        self._report(endpoint, runs, sentences)
        if self._was_stopped:
            return EXIT_CTRL_C
        return self._search.status(runs) if self._search else _status(runs)

    def _next_load(self, load: Load, runs: Sequence[Measured]) -> Load | None:
        """The load of the next run, with prompts of its own. None after the last one."""
        seed = load.seed + RUN_SEED * len(runs)
        if self._search is not None:
            arrivals = self._search.next_arrivals(load, runs)
            return None if arrivals is None else replace(load, arrivals=arrivals, seed=seed)
        is_over = len(runs) == self._asked.repeat or (runs and runs[-1].progress.why)
        return None if is_over else replace(load, seed=seed)

    def _stop(self, task: "asyncio.Task[int]") -> None:
        """The first Ctrl-C ends the run. With no run, or the second time, everything ends."""
        if self.running is not None and not self._was_stopped:
            self._was_stopped = True
            self.running.stop(CTRL_C)
        else:
            task.cancel()

    async def _prepare(self) -> tuple[Endpoint, Load]:
        asked, clock = self._asked, self._clock
        key = None if asked.api_key_file is None else read_api_keys(asked.api_key_file)[0]
        server = Server.at(asked.base_url or f"http://{asked.host}:{asked.port}", key)
        load_of(asked, None)  # what is wrong in the flags is told before anybody is asked
        model = await find_model(server, clock, asked.model)
        load = load_of(asked, model.context)
        asking = Asking(
            Connections(server, clock), PATHS[asked.backend], model.model, history_of(asked), fields_of(asked),
            asked.request_timeout_seconds,
        )  # fmt: skip
        try:
            endpoint = await prepared(server, model, asking, load, clock)
        finally:
            asking.connections.close()
        self._console.print(f"{model.model}: {load.words()}")
        if endpoint.probed.is_plain:
            self._console.print("the endpoint refuses the fields that count tokens; it is asked without them")
        return endpoint, load

    async def _one(self, endpoint: Endpoint, load: Load, number: int) -> Measured:
        """One run, shown while it lasts."""
        tokenizer = load_tokenizer(self._asked.tokenizer) if self._asked.tokenizer else None
        title = f"run {number + 1}: {load.arrivals.words()}"
        begun: asyncio.Queue[Run] = asyncio.Queue()

        async def show() -> None:
            async with shown_live(self._console, await begun.get(), title):
                await asyncio.Event().wait()

        def started(run: Run) -> None:
            self.running = run
            begun.put_nowait(run)

        showing = asyncio.create_task(show())
        try:
            measured = await measure(endpoint, load, tokenizer, started)
        finally:
            self.running = None
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        if self._asked.repeat > 1 or self._search:
            self._console.print(f"\n{title}")
        show_run(self._console, measured, markdown=self._asked.markdown)
        return measured

    def _report(self, endpoint: Endpoint, runs: Sequence[Measured], sentences: Sequence[str]) -> None:
        if self._asked.out == "none":
            return
        folder = _folder(self._asked.out)
        about = environment(endpoint, self._typed)
        report = report_json(runs, about) | ({"sweep": list(sentences)} if sentences else {})
        write_report(folder, runs, report, page_of(runs, about, sentences))
        self._console.print(f"report: {folder / 'report.html'}")


def _folder(out: str | None) -> Path:
    return Path(out) if out else RESULTS / f"{datetime.now():%Y%m%d-%H%M%S}"


def _status(runs: Sequence[Measured]) -> int:
    for run in runs:
        failed = run.figures.endings[Ending.FAILED]
        wrong = run.exactness.num_wrong if run.exactness else 0
        if run.refusal or run.progress.why or failed or wrong:
            return EXIT_FAILED
    return 0


def new_console() -> Console:
    """For tables, also in a pipe."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
