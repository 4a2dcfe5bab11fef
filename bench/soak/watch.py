"""Memory and file descriptors of every process over its life, and whether they grow. The fit is pure."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import psutil

from testkit.roles import role_of

WARM_UP_S = 30.0  # pools fill and caches grow: not counted; nor is the first half of a longer life
LEAST_S = 240.0  # of all lives of a role together; fewer seconds prove nothing
# The most that one life may rise by in its counted part: buffers reach their maximum in steps. The longer the lives
# are, the smaller the slope that passes: 1.6 MiB/min in 10 minutes, 16 MiB/min in 1 minute.
MAX_RSS_RISE_MIB = 16.0
MAX_FDS_RISE = 4.0
_MIB = 2**20


@dataclass
class Life:
    """One process from its first to its last sample. `samples`: (seconds, resident MiB without KV, descriptors)."""

    name: str
    pid: int
    samples: list[tuple[float, float, int]] = field(default_factory=list)

    def counted(self) -> list[tuple[float, float, int]]:
        """The samples that count: after the warm-up and in the second half."""
        if not self.samples:
            return []
        first, last = self.samples[0][0], self.samples[-1][0]
        start = max(first + WARM_UP_S, (first + last) / 2)
        return [sample for sample in self.samples if sample[0] >= start]


@dataclass(frozen=True)
class Growth:
    """The growth over all lives of a role. `seconds` are those that count; `is_flat` is None if they are too few."""

    name: str
    num_lives: int
    seconds: float
    rss_max_mib: float
    rss_mib_per_min: float
    fds_max: int
    fds_per_min: float
    is_flat: bool | None


class Watch:
    """The lives of a deployment's processes, sampled by `look`."""

    def __init__(self, launcher: int) -> None:
        self._launcher = psutil.Process(launcher)
        self._lives: dict[tuple[int, float], Life] = {}

    def look(self, now: float) -> None:
        """Samples every process once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self._launcher, *self._launcher.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    self._sample(process, now)

    def processes(self) -> list[psutil.Process]:
        """Every process that was seen and still runs."""
        processes = []
        for pid, created in self._lives:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def growths(self) -> list[Growth]:
        """One growth for each role."""
        names = sorted({life.name for life in self._lives.values()})
        return [growth(name, [life for life in self._lives.values() if life.name == name]) for name in names]

    def _sample(self, process: psutil.Process, now: float) -> None:
        key = (process.pid, process.create_time())
        words = process.cmdline()
        is_launcher = process.pid == self._launcher.pid
        if not words or process.status() == psutil.STATUS_ZOMBIE:
            return
        if not is_launcher and words == self._launcher.cmdline():
            return  # a child that is about to become another program
        name = "launcher" if is_launcher else role_of(words)
        life = self._lives.setdefault(key, Life(name, process.pid))
        life.samples.append((now, _resident_bytes(process.pid) / _MIB, process.num_fds()))


def _resident_bytes(pid: int) -> int:
    """Resident bytes without shared memory. KV lies there; its size is fixed, but a prefill worker that writes in place
    touches it page by page."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return 1024 * sum(int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile"))


def growth(name: str, lives: Sequence[Life]) -> Growth:
    """The common slope of all lives, each around its own mean."""
    counted = [life.counted() for life in lives]
    seconds = sum(samples[-1][0] - samples[0][0] for samples in counted if samples)
    minutes = seconds / 60 / max(1, sum(len(samples) > 1 for samples in counted))  # of a mean life
    rss = slope([[(at, mib) for at, mib, _ in samples] for samples in counted]) * 60
    fds = slope([[(at, float(count)) for at, _, count in samples] for samples in counted]) * 60

    every = [sample for life in lives for sample in life.samples]
    return Growth(
        name=name,
        num_lives=len(lives),
        seconds=round(seconds, 1),
        rss_max_mib=round(max((mib for _, mib, _ in every), default=0.0), 1),
        rss_mib_per_min=round(rss, 3),
        fds_max=max((count for _, _, count in every), default=0),
        fds_per_min=round(fds, 3),
        is_flat=rss * minutes <= MAX_RSS_RISE_MIB and fds * minutes <= MAX_FDS_RISE if seconds >= LEAST_S else None,
    )


def slope(lines: Sequence[Sequence[tuple[float, float]]]) -> float:
    """The common slope of parallel lines of least squares; 0 if no line has two points."""
    rise = spread = 0.0
    for points in filter(None, lines):
        middle_x, middle_y = fmean(x for x, _ in points), fmean(y for _, y in points)
        rise += sum((x - middle_x) * (y - middle_y) for x, y in points)
        spread += sum((x - middle_x) ** 2 for x, _ in points)
    return rise / spread if spread else 0.0
