"""How busy the client itself is: its lag, its share of the cores, and what the system lets it open."""

import asyncio
import os
import resource
from array import array
from dataclasses import dataclass
from pathlib import Path

from loadtest.figures.figures import Figures
from protocol.errors import ConfigError
from runtime.clock import Clock

LOOK_S = 0.02
LATE_MS, FAR_TOO_LATE_MS = 10.0, 100.0
BUSY_CORE, MOST_CORE = 0.5, 0.9
JUDGED_S = 1.0  # a shorter run says little of its client
SPARE_DESCRIPTORS = 64
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class OwnLoad:
    """The client during a run. `lag_p99_ms`: how late its event loop woke. `machine`: use of all cores, 0 to 1."""

    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    core: float  # CPU seconds a second
    machine: float | None
    num_cores: int
    seconds: float

    def refusal(self, figures: Figures) -> str | None:
        """A sentence if the client was the bottleneck, so that its figures would say nothing of the server."""
        if self.seconds < JUDGED_S:
            return None
        if self.core > MOST_CORE:
            return f"this client was the bottleneck: it used {self.core:.0%} of a core"
        late = f"its event loop woke {self.lag_p99_ms:.1f} ms late in 1 of 100 looks"
        if self.core > BUSY_CORE and self._is_late(figures):
            return f"this client was the bottleneck: it used {self.core:.0%} of a core, and {late}"
        if self.lag_p99_ms > FAR_TOO_LATE_MS:
            return f"this client could not see in time what came: {late}"
        return None

    def warning(self, figures: Figures) -> str | None:
        """A sentence if something else kept the client from its core, so that latencies are a little too long."""
        if not self._is_late(figures):
            return None
        return (
            f"other processes kept this client from its core: it woke {self.lag_p99_ms:.1f} ms late in 1 of 100 looks,"
            " so the tails of latencies are up to that much too long"
        )

    def _is_late(self, figures: Figures) -> bool:
        itl = figures.itl_ms.p50 if figures.itl_ms else 0.0
        return self.lag_p99_ms > max(LATE_MS, itl / 2)


class OwnWatch:
    """Watches the client from `run` until it is cancelled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late = array("d")
        self._start = clock.now()
        self._cpu_s = _cpu_s()
        self._machine = _machine_ticks()

    async def run(self) -> None:
        """Wakes up again and again, and notes how late."""
        while True:
            due = self._clock.now() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self._late.append(self._clock.now() - due)

    def load(self) -> OwnLoad:
        """What was seen so far."""
        late = sorted(self._late) or [0.0]
        seconds = max(self._clock.now() - self._start, 1e-9)
        return OwnLoad(
            lag_p50_ms=max(0.0, late[len(late) // 2]) * 1e3,
            lag_p99_ms=max(0.0, late[min(len(late) - 1, int(0.99 * len(late)))]) * 1e3,
            lag_max_ms=max(0.0, late[-1]) * 1e3,
            core=(_cpu_s() - self._cpu_s) / seconds,
            machine=_busy_share(self._machine, _machine_ticks()),
            num_cores=os.cpu_count() or 1,
            seconds=seconds,
        )


def check_limits(max_concurrency: int | None) -> None:
    """Raises the soft limit of descriptors as far as it goes. ConfigError if the load needs more, or more ports."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if max_concurrency is None:
        return

    if hard != resource.RLIM_INFINITY and max_concurrency + SPARE_DESCRIPTORS > hard:
        raise ConfigError(
            f"--max-concurrency: got {max_concurrency}, expected at most {hard - SPARE_DESCRIPTORS}: this process may"
            f" open {hard} descriptors (ulimit -Hn)",
            param="max-concurrency",
        )
    first, last = map(int, _PORTS.read_text().split()) if _PORTS.exists() else (1024, 65535)
    if max_concurrency > last - first:
        raise ConfigError(
            f"--max-concurrency: got {max_concurrency}, expected at most {last - first}: this host has no more ports"
            f" for connections ({_PORTS})",
            param="max-concurrency",
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _machine_ticks() -> tuple[int, int] | None:
    """Busy and all ticks of the machine so far. None where the kernel does not tell."""
    if not _STAT.exists():
        return None
    ticks = [int(number) for number in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and waiting for a disk


def _busy_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
