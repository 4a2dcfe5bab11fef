"""Requests with grammars on a running pair, in windows that take turns with the same load without grammars.

    calm window --> fuzzed window --> calm window --> ...      a gap is judged by the calm windows before and behind it

A gap above the bound is tried again with the requests that were in flight; it counts if it comes again.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

from bench.soak.watch import Growth, Watch
from runtime.clock import Clock, MonotonicClock
from tests.e2e.baton_process import PROJECT, BatonProcess, environment
from tests.fuzz.served.asks import ask
from tests.fuzz.served.client import Done, Order
from tests.fuzz.served.neighbour import BOUND_MS, Stream
from tests.saying import say

NUM_NEIGHBOURS: Final = 2
MAX_STORED: Final = 20  # findings of one kind and family
ROUNDS: Final = 3  # in which a gap is tried again
COMES_AGAIN: Final = 2  # in so many of them it must be above the bound
TEMPLATE: Final = PROJECT / "tests" / "gateway" / "golden" / "tools.jinja"  # the bundled model's own has no tools
FLAGS: Final = f"serve --port 0 --dtype float32 --prefill 1 --decode 1 --chat-template {TEMPLATE}"


@dataclass(frozen=True)
class Options:
    """`most`: requests of each client in a window; `num_windows`: fuzzed ones, at most; 0: as many as fit."""

    seed: int
    minutes: float
    folder: Path
    num_clients: int = 4
    window_s: float = 20.0
    first: int = 0
    most: int = 10**9
    num_windows: int = 0


@dataclass(frozen=True)
class Window:
    """One window: the neighbours' longest gap, in seconds, when it was, and what was asked meanwhile."""

    is_calm: bool
    gap_s: float
    gap_at: tuple[float, float]
    done: Sequence[Done]

    def in_flight(self) -> list[int]:
        """Numbers of the requests that were in flight in the gap."""
        start, end = self.gap_at
        return [each.number for each in self.done if each.began < end and each.ended > start]


def bound_s(*calm_s: float) -> float:
    """The longest gap that is allowed beside the gaps of the same load without grammars."""
    return max(BOUND_MS / 1e3, 2 * max(calm_s))


@dataclass
class Totals:
    """What a campaign has found. `counts`: by family and kind of verdict; `gaps`: of fuzzed and of calm windows, in
    seconds."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_findings: int = 0
    num_suspects: int = 0
    gaps: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    growths: Sequence[Growth] = ()
    has_died: bool = False

    def kinds(self) -> Counter[str]:
        """How often each kind came."""
        found = Counter[str]()
        for (_, kind), number in self.counts.items():
            found[kind] += number
        return found


class Client:
    """A process that asks; see tests/fuzz/served/client.py."""

    def __init__(self, url: str, seed: int) -> None:
        self.process = subprocess.Popen(
            (sys.executable, "-m", "tests.fuzz.served.client", url, str(seed)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            env=environment(),
        )

    def follow(self, order: Order) -> list[Done]:
        """What became of the requests of an order."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asdict(order)) + "\n")
        self.process.stdin.flush()
        found: list[Done] = []
        for line in self.process.stdout:
            if "done" in (told := json.loads(line)):
                return found
            found.append(Done(**told))
        raise AssertionError("a client has ended")

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()


class Campaign:
    """One pair, its neighbours and its clients."""

    def __init__(self, options: Options, baton: BatonProcess, clock: Clock) -> None:
        self._options, self._baton, self._clock = options, baton, clock
        self._streams = [Stream(baton.url) for _ in range(NUM_NEIGHBOURS)]
        self._clients = [Client(baton.url, options.seed) for _ in range(options.num_clients)]
        self._next = [options.first + place for place in range(options.num_clients)]
        self._pids = {child.pid for child in baton.children()}
        self._watch = Watch(baton.process.pid)
        self.totals = Totals()

    @contextmanager
    def running(self) -> Iterator["Campaign"]:
        """With the neighbours' streams."""
        with ExitStack() as stack:
            for client in self._clients:
                stack.callback(client.close)
            for stream in self._streams:
                stack.enter_context(stream.running())
            yield self

    def go_on(self, stop: Event) -> None:
        """Window after window, until the time is over, `stop` is set, or a process that serves has ended."""
        end = self._clock.now() + self._options.minutes * 60
        before, number = self._window(is_calm=True), 0
        while not self.totals.has_died and not stop.is_set() and self._clock.now() < end:
            fuzzed = self._window(is_calm=False)
            if self.totals.has_died:
                break
            after = self._window(is_calm=True)
            if fuzzed.gap_s > bound_s(before.gap_s, after.gap_s):
                self._suspect(fuzzed, bound_s(before.gap_s, after.gap_s))
            before, number = after, number + 1
            self._tell(number)
            if number == self._options.num_windows:
                break
        self.totals.growths = self._watch.growths()

    def _window(self, *, is_calm: bool, numbers: Sequence[int] = (), mark: str = "") -> Window:
        """`numbers`: those alone; empty: the next ones."""
        start = self._clock.now()
        orders = self._orders(start, numbers, mark, is_calm=is_calm)
        with ThreadPoolExecutor(len(orders)) as pool:
            found = list(pool.map(lambda pair: pair[0].follow(pair[1]), zip(self._clients, orders, strict=False)))
        end = self._clock.now()
        done = [each for some in found for each in some]
        self._look([each for each in done if each.is_finding or not is_calm], end)

        gap_at = self._longest_gap(start, end)
        window = Window(is_calm, gap_at[1] - gap_at[0], gap_at, done)
        if not numbers:
            self.totals.gaps[is_calm].append(window.gap_s)
            self._note(window, end - start)
            if not is_calm:
                self._next = [first + len(some) * len(orders) for first, some in zip(self._next, found, strict=True)]
        return window

    def _longest_gap(self, start: float, end: float) -> tuple[float, float]:
        """Between which two pieces of one stream; what comes next ends the gap in which the window ended."""
        if self.totals.has_died:
            return start, start
        for stream in self._streams:
            stream.wait()
        found = max((each.worst(start, end) for each in self._streams), key=lambda gap: gap[1] - gap[0])
        for stream in self._streams:
            stream.forget()
        return found

    def _orders(self, start: float, numbers: Sequence[int], mark: str, *, is_calm: bool) -> list[Order]:
        options = self._options
        if numbers:
            return [Order(each, 1, start + 1e6, 1, is_calm, mark) for each in numbers[: options.num_clients]]
        until = start + options.window_s
        return [Order(first, options.num_clients, until, options.most, is_calm) for first in self._next]

    def _look(self, done: Sequence[Done], now: float) -> None:
        """Counts, stores findings, and looks whether all processes live."""
        for each in done:
            self.totals.counts[each.family, each.kind] += 1
            if each.is_finding or each.kind == "disputed":
                self._store(each)
        self._watch.look(now)
        if not self.totals.has_died and {child.pid for child in self._baton.children()} != self._pids:
            self.totals.has_died = True
            self.totals.num_findings += 1
            last = sorted(done, key=lambda each: each.ended)[-3 * self._options.num_clients :]
            say(f"DIED: a process that serves has ended; the last requests: {[each.number for each in last]}")
            for each in last:
                self._write(f"died-{each.number}", each)

    def _store(self, done: Done) -> None:
        self.totals.num_findings += done.is_finding
        if self.totals.counts[done.family, done.kind] <= MAX_STORED:
            say(f"{done.kind}: {done.number} ({done.family}): {done.why[:300]}")
            self._write(f"{done.kind.replace(' ', '-').replace(':', '')}-{done.number}", done)

    def _write(self, name: str, done: Done) -> None:
        """The body, and beside it what came and how to repeat it."""
        seed, folder = self._options.seed, self._options.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_bytes(ask(seed, done.number).raw)
        again = (
            f"{sys.executable} -m tests.fuzz.served --seed {seed} --from {done.number} --most 1 --windows 1 --clients 1"
        )
        (folder / f"{name}.txt").write_text(f"{json.dumps(asdict(done), indent=1)}\nAgain: {again}\n")

    def _suspect(self, window: Window, allowed_s: float) -> None:
        """Tries a gap again, with the requests that were in flight, beside the same ones without their grammars."""
        numbers = window.in_flight()
        self.totals.num_suspects += 1
        say(f"a gap of {window.gap_s * 1e3:.0f} ms, {allowed_s * 1e3:.0f} allowed, beside {numbers}: tried again")
        rounds = []
        for turn in range(ROUNDS) if numbers else ():
            calm = self._window(is_calm=True, numbers=numbers)
            again = self._window(is_calm=False, numbers=numbers, mark=f"turn {turn}")
            rounds.append((again.gap_s, calm.gap_s))
        told = " ".join(f"{gap * 1e3:.0f}/{calm * 1e3:.0f}" for gap, calm in rounds)
        say(f"gaps beside them, and without their grammars, in ms: {told}")
        if sum(gap > bound_s(calm) for gap, calm in rounds) >= COMES_AGAIN:
            self.totals.counts["gap", "gap"] += 1
            for each in window.done:
                if each.number in numbers:
                    self._write(f"gap-{each.number}", each)
            self.totals.num_findings += 1

    def _note(self, window: Window, seconds: float) -> None:
        self._options.folder.mkdir(parents=True, exist_ok=True)
        row = {
            "calm": window.is_calm,
            "seconds": round(seconds, 1),
            "requests": len(window.done),
            "gap_ms": round(window.gap_s * 1e3),
            "load": os.getloadavg()[0],
        }
        with (self._options.folder / "windows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if not window.is_calm:
            with (self._options.folder / "requests.jsonl").open("a") as file:
                file.writelines(json.dumps(asdict(each)) + "\n" for each in window.done)

    def _tell(self, number: int) -> None:
        totals = self.totals
        fuzzed, calm = totals.gaps[False][-1], totals.gaps[True][-1]
        say(
            f"window {number}: {sum(totals.counts.values())} requests, {totals.num_findings} findings, gap "
            f"{fuzzed * 1e3:.0f} ms beside {calm * 1e3:.0f}, load {os.getloadavg()[0]:.1f}: {dict(totals.kinds())}"
        )


def run(options: Options, stop: Event) -> Totals:
    """A campaign on a pair of its own, until `stop` is set at the latest."""
    options.folder.mkdir(parents=True, exist_ok=True)
    clock = MonotonicClock()
    with BatonProcess(*FLAGS.split(), log=options.folder / "baton.log") as baton:
        campaign = Campaign(options, baton, clock)
        with campaign.running():
            campaign.go_on(stop)
    return campaign.totals
