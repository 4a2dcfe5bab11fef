"""`python -m bench.ranks.rest`: what the ranks of a group do without requests, after one rank alone had one.

A unified worker of several ranks streams one answer. Then nobody asks for anything: no rank may launch, and each costs
what its heartbeats cost. CPU times and wake-ups are the kernel's. The last line of output is one JSON object.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.gateway.lone_gateway import cpu_seconds, metrics_of
from bench.memory.figures import Goal, show_goals, show_rows
from loadtest.__main__ import WIDTH
from runtime.clock import MonotonicClock
from tests.e2e.baton_process import BatonProcess

PROMPT: Final = [5, 6, 7, 8]
MOST_SHARE: Final = 0.01  # of a core, for each rank at rest
SETTLE_S: Final = 2.0  # from the end of the stream until the ranks are watched


@dataclass(frozen=True)
class Use:
    """What one process has used so far: in its first thread, in ZeroMQ's, and in others, those of collectives."""

    cpu_s: float
    first_s: float
    zmq_s: float
    wakes: int  # of all threads

    @staticmethod
    def of(pid: int) -> "Use":
        """Reads what the kernel has counted."""
        first_ns = zmq_ns = wakes = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = dict(line.split(":", 1) for line in (task / "status").read_text(encoding="utf-8").splitlines())
            run_ns = int((task / "schedstat").read_text(encoding="utf-8").split()[0])
            first_ns += run_ns * (task.name == str(pid))
            zmq_ns += run_ns * status["Name"].strip().startswith("ZMQ")
            wakes += int(status["voluntary_ctxt_switches"])
        return Use(cpu_seconds(pid), first_ns / 1e9, zmq_ns / 1e9, wakes)

    def since(self, earlier: "Use", seconds: float) -> "Share":
        """What was used of a core since then."""
        found = [getattr(self, name) - getattr(earlier, name) for name in ("cpu_s", "first_s", "zmq_s", "wakes")]
        return Share(*(each / seconds for each in found))


@dataclass(frozen=True)
class Share:
    """Shares of a core over some time, and wake-ups a second."""

    cpu: float
    first: float
    zmq: float
    wakes_per_s: float


@dataclass(frozen=True)
class Row:
    """One process. `use` is at rest. Launches are None for a process that is no rank."""

    process: str
    streamed: int | None  # launches while the stream went on
    idle: int | None  # of these without tokens
    rested: int | None  # launches at rest
    use: Share

    @property
    def shown(self) -> dict[str, str]:
        """For a table."""
        counts = {"launches": self.streamed, "idle": self.idle, "at rest": self.rested}
        told = {name: "" if count is None else str(count) for name, count in counts.items()}
        use = self.use
        threads = {"first thread": use.first, "ZeroMQ": use.zmq, "others": use.cpu - use.first - use.zmq}
        shares = {name: f"{share:.2%}" for name, share in {"of a core": use.cpu, **threads}.items()}
        return {"process": self.process, **told, **shares, "wake-ups/s": f"{use.wakes_per_s:.0f}"}


class Counts:
    """The launches of each rank so far, by worker id."""

    def __init__(self, url: str) -> None:
        metrics = asyncio.run(metrics_of(url))
        self.all, self.idle = _by_worker(metrics, "launches"), _by_worker(metrics, "idle_launches")


def _by_worker(metrics: Mapping[str, float], name: str) -> dict[str, int]:
    found = {key: re.search(r'worker="([^"]+)"', key) for key in metrics if key.startswith(f"baton_{name}_total{{")}
    return {match[1]: int(metrics[key]) for key, match in found.items() if match}


def measure(baton: BatonProcess, seconds: float, num_tokens: int) -> list[Row]:
    """Streams one answer, then watches every process for so long."""
    clock, nothing = MonotonicClock(), threading.Event()  # which is never set
    names = dict.fromkeys((child.pid for child in baton.children()), "gateway") | {baton.process.pid: "launcher"}
    names |= {row["pid"]: row["id"] for row in baton.workers()}

    before = Counts(baton.url)
    for _ in baton.stream(prompt=PROMPT, max_tokens=num_tokens, ignore_eos=True):
        pass
    assert baton.wait_for_rest()
    nothing.wait(SETTLE_S)

    streamed, began, used = Counts(baton.url), clock.now(), {pid: Use.of(pid) for pid in names}
    nothing.wait(seconds)
    took_s, later = clock.now() - began, {pid: Use.of(pid) for pid in names}
    rested = Counts(baton.url)

    rows = []
    for pid, name in sorted(names.items(), key=lambda each: each[1]):
        use = later[pid].since(used[pid], took_s)
        if name not in before.all:
            rows.append(Row(name, None, None, None, use))
            continue
        launched, idle = streamed.all[name] - before.all[name], streamed.idle[name] - before.idle[name]
        rows.append(Row(name, launched, idle, rested.all[name] - streamed.all[name], use))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints. Status 1 if a goal is not reached."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ranks.rest", description="Measures a group without requests."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="without requests (default 60)")
    parser.add_argument("--size", type=int, default=4, help="ranks of the group (default 4)")
    parser.add_argument("--tokens", type=int, default=200, help="of the stream (default 200)")
    parser.add_argument("serve", nargs="*", help="further arguments of baton serve, after --")
    asked = parser.parse_args(argv)

    flags = f"--port 0 --prefill 0 --decode 0 --unified 1 --dp-size {asked.size} --enable-dp-attention".split()
    with (
        tempfile.TemporaryDirectory() as folder,
        BatonProcess("serve", *flags, *asked.serve, log=Path(folder) / "log", patient=False) as baton,
    ):
        rows = measure(baton, asked.seconds, asked.tokens)

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    show_rows(console, f"one stream, then {asked.seconds:g} s of rest", [row.shown for row in rows], markdown=False)
    ranks = [row for row in rows if row.streamed is not None]
    goals = [
        Goal("ranks that launched without tokens", sum(bool(row.idle) for row in ranks), "at least", asked.size - 1),
        Goal("ranks with nothing but tokens", sum(not row.idle for row in ranks), "at least", 1),
        Goal("launches at rest", sum(row.rested or 0 for row in ranks), "at most", 0),
        Goal("the busiest rank's share of a core at rest", max(row.use.cpu for row in ranks), "at most", MOST_SHARE),
    ]
    judged = show_goals(console, goals)
    print(
        json.dumps({"bench": "ranks.rest", "seconds": asked.seconds, "rows": list(map(asdict, rows)), "goals": judged})
    )
    return 0 if all(goal.is_met for goal in goals) else 1


if __name__ == "__main__":
    raise SystemExit(main())
