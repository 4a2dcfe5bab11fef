"""Memory and file descriptors of every process over its life, and whether they grow. The fit is pure.

What it does not know: what the processes do.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import psutil

WARM_UP_S = 30.0  # pools fill, caches grow: not counted
LEAST_S = 45.0  # a shorter life says nothing
MAX_RSS_GROWTH_MIB = 16.0  # over the part of a life that counts, by the fitted line
MAX_FD_GROWTH = 8.0
_MIB = 2**20


@dataclass
class Life:
    """One process from its first to its last sample. `samples`: (seconds, resident MiB, descriptors)."""

    name: str
    pid: int
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    def counted(self) -> list[tuple[float, float, int]]:
        """Samples after the warm-up."""
        start = self.samples[0][0] + WARM_UP_S if self.samples else 0.0
        return [sample for sample in self.samples if sample[0] >= start]


@dataclass(frozen=True)
class Growth:
    """What the fitted lines say of one life. `is_flat` is None for a life too short to tell."""

    name: str
    pid: int
    seconds: float
    rss_mib: float
    rss_mib_per_min: float
    fds: float
    fds_per_min: float
    is_flat: bool | None


class Watch:
    """The lives of a deployment's processes, sampled by `look`."""

    def __init__(self, launcher: int) -> None:
        self._launcher = psutil.Process(launcher)
        self._lives: dict[tuple[int, float], Life] = {}

    def look(self, now: float) -> None:
        """Takes one sample of every process."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self._launcher, *self._launcher.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    self._sample(process, now)

    def processes(self) -> list[psutil.Process]:
        """Every process that was ever seen and still runs."""
        found = []
        for pid, created in self._lives:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def growths(self) -> list[Growth]:
        """One for each life, in the order of their beginnings."""
        return [growth(life) for life in self._lives.values()]

    def _sample(self, process: psutil.Process, now: float) -> None:
        key = (process.pid, process.create_time())
        words = process.cmdline()
        if not words or process.status() == psutil.STATUS_ZOMBIE:
            return
        name = "launcher" if process.pid == self._launcher.pid else _name(words)
        life = self._lives.setdefault(key, Life(name, process.pid))
        life.samples.append((now, process.memory_info().rss / _MIB, process.num_fds()))


def _name(words: Sequence[str]) -> str:
    return words[words.index("-m") + 1].split(".")[0] if "-m" in words else words[0].rsplit("/", 1)[-1]


def growth(life: Life) -> Growth:
    """The fit of one life."""
    counted = life.counted()
    seconds = counted[-1][0] - counted[0][0] if counted else 0.0
    rss = slope([(at, mib) for at, mib, _ in counted])
    fds = slope([(at, float(count)) for at, _, count in counted])
    is_flat = rss * seconds <= MAX_RSS_GROWTH_MIB and fds * seconds <= MAX_FD_GROWTH
    last = life.samples[-1] if life.samples else (0.0, 0.0, 0)
    return Growth(
        life.name, life.pid, round(seconds, 1), round(last[1], 1), round(rss * 60, 3), last[2], round(fds * 60, 3),
        is_flat if seconds >= LEAST_S else None,
    )  # fmt: skip


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line of least squares, per second; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    middle_x, middle_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
