"""`python -m bench.client`: what `baton bench` measures on an echo server, beside the schedule by which that answers.

The client and the server have a core each. Where the server itself was late, its lateness stands beside the figures.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from bench.client.echo import Schedule
from loadtest.__main__ import EXIT_CONFIG, WIDTH, guarded_run
from loadtest.deployment import deployed
from loadtest.drive.server import find_model, metrics
from loadtest.drive.talk import COMPLETIONS, Asking, TokenHistory
from loadtest.http_exchange import Connections, Server
from loadtest.measure import Load, Measured, measure, prepared
from loadtest.report import new_table
from loadtest.work.arrivals import AtOnce
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock


@dataclass(frozen=True)
class Case:
    """So many streams at a time, each with a token each `itl_s`."""

    num_streams: int
    schedule: Schedule
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """What the schedule gives, while all streams run."""
        return self.num_streams / self.schedule.itl_s


CASES = (
    Case(16, Schedule(0.2, 0.02), 200),
    Case(1000, Schedule(0.5, 0.1), 80),
    Case(2000, Schedule(0.5, 0.1), 80),
    Case(5000, Schedule(1.0, 0.1), 80),
)


async def measured_on_echo(case: Case, cores: tuple[int, int]) -> tuple[Measured, float]:
    """The run, and how late the server's events were (p99, in seconds)."""
    command = (sys.executable, "-m", "bench.client.echo", "--core", str(cores[1]))
    schedule = ("--ttft-ms", str(case.schedule.ttft_s * 1e3), "--itl-ms", str(case.schedule.itl_s * 1e3))
    clock = MonotonicClock()
    async with deployed(schedule, command) as url:
        server = Server.at(url, "")
        asking = Asking(Connections(server, clock), COMPLETIONS, "echo", TokenHistory, {"temperature": 0})
        work = RandomWork(Lengths("fixed", 8), Lengths("fixed", case.tokens))
        load = Load(
            work=work, arrivals=AtOnce(), max_concurrency=case.num_streams, num_conversations=case.num_streams,
            num_warmups=case.num_streams,
        )  # fmt: skip
        found = await find_model(server, clock, None)
        endpoint = await prepared(server, found, asking, load, clock)
        measured = await measure(endpoint, load, None, lambda _: None)
        asking.connections.close()
        page = await metrics(server, clock)
    return measured, (page or {}).get("echo_late_p99_seconds", float("nan"))


def row_of(case: Case, measured: Measured, late_s: float) -> dict[str, Any]:
    """The figures beside the schedule's."""
    figures, schedule = measured.figures, case.schedule
    assert figures.ttft_ms and figures.itl_ms
    return {
        "streams": case.num_streams,
        "tokens/s of the schedule": round(case.tokens_per_s),
        "tokens/s": round(figures.tokens_per_s),
        "TTFT p50 - schedule, ms": round(figures.ttft_ms.p50 - schedule.ttft_s * 1e3, 2),
        "ITL p50 - schedule, ms": round(figures.itl_ms.p50 - schedule.itl_s * 1e3, 3),
        "ITL mean - schedule, ms": round(figures.itl_ms.mean - schedule.itl_s * 1e3, 3),
        "server late p99, ms": round(late_s * 1e3, 2),
        "client late p99, ms": round(measured.own.lag_p99_ms, 2),
        "client's core": f"{measured.own.core:.0%}",
        "us/token": round(measured.own.core * measured.progress.now_s * 1e6 / max(measured.progress.num_tokens, 1), 2),
        "refused": measured.refusal or "",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a row for each case. Exit status 0; 2 if this machine cannot run them."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the first case alone; shows that it works")
    parser.add_argument("--markdown", action="store_true", help="tables that can be pasted into a page")
    asked = parser.parse_args(argv)

    console = Console(width=None if sys.stdout.isatty() else WIDTH + 40, highlight=False)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    rows = []
    try:
        for case in CASES[:1] if asked.quick else CASES:
            measured, late_s = guarded_run(measured_on_echo(case, (cores[0], cores[-1])))
            rows.append(row_of(case, measured, late_s))
    except ConfigError as error:
        print(f"bench.client: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    finally:
        os.sched_setaffinity(0, set(cores))

    table = new_table(asked.markdown, *rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    print(json.dumps({"bench": "client", "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
