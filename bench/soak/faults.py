"""Chooses which process is hit when and how, injects the fault, and checks that it took effect.

Every role is hit in turn, so that a run of any length covers all.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psutil

from testkit.roles import role_of

GONE_S = 60.0  # time for a process to end or to stand still after a signal
STOPPED_S = 5.0  # how long SIGSTOP lasts: longer than the 2 s after which a silent worker is lost
SHORTEST_S, LONGEST_S = 0.5, 8.0  # of a pause in a storm: from one that nobody notices to one shorter than --hang-limit
_LOOK_S = 0.02


class Fault(StrEnum):
    """What is done to a process. SIGTERM is no fault: what is told to end leaves, and is not started again."""

    KILL = "kill -9"
    STOP = "SIGSTOP, then SIGCONT"


@dataclass(frozen=True)
class Hit:
    """A fault that was injected. `landed`: the process ended, or stood still. Times are seconds of the clock."""

    fault: Fault
    role: str
    pid: int
    at: float
    landed: bool
    recovered_s: float | None = None  # until everything served again; None: it did not


def schedule(seed: int, roles: Sequence[str]) -> Iterator[tuple[Fault, str]]:
    """Every fault for every role, in random order, without end. Each role is hit once before any is hit again."""
    rng = random.Random(seed)
    while True:
        faults, order = rng.sample(list(Fault), len(Fault)), rng.sample(roles, len(roles))
        for turn in range(len(faults)):
            for number, role in enumerate(order):
                yield faults[(number + turn) % len(faults)], role


@dataclass(frozen=True)
class Stroke:
    """One fault of a storm: `at` seconds after its beginning, on a process drawn by `draw` (in [0, 1)) among those that
    live then. `stopped_s`: how long a pause lasts."""

    at: float
    fault: Fault
    draw: float
    stopped_s: float


def storm(seed: int, faults: Sequence[Fault], every_s: float, seconds: float) -> list[Stroke]:
    """A fault of a random kind each `every_s`, whether or not those before have healed. The kinds are equally frequent:
    in every round each comes once."""
    rng, strokes = random.Random(seed), list[Stroke]()
    while len(strokes) < int(seconds / every_s):
        for fault in rng.sample(list(faults), len(faults)):
            at = (len(strokes) + 0.5) * every_s
            strokes.append(Stroke(at, fault, rng.random(), rng.uniform(SHORTEST_S, LONGEST_S)))
    return strokes[: int(seconds / every_s)]


def roles_of(launcher: int) -> Mapping[str, list[psutil.Process]]:
    """The children of a deployment by role: gateway, prefill, decode, unified."""
    roles: dict[str, list[psutil.Process]] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(launcher).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                words = child.cmdline()
                if "-m" in words and child.status() != psutil.STATUS_ZOMBIE:
                    roles.setdefault(role_of(words), []).append(child)
    return roles


async def inject(fault: Fault, victim: psutil.Process, stopped_s: float = STOPPED_S) -> bool:
    """Injects a fault. Returns whether it took effect. A process that is stopped goes on after `stopped_s`, if it still
    lives."""
    try:
        if fault is Fault.STOP:
            return await _stand_still(victim, stopped_s)
        victim.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False  # it had just ended by itself
    return await _comes_to(victim, None, GONE_S)


async def _stand_still(victim: psutil.Process, stopped_s: float) -> bool:
    victim.send_signal(signal.SIGSTOP)
    try:
        stood = await _comes_to(victim, psutil.STATUS_STOPPED, GONE_S)
        await asyncio.sleep(stopped_s)
        return stood
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)


async def _comes_to(victim: psutil.Process, status: str | None, within_s: float) -> bool:
    """Whether the process reaches this status in time. None: whether it ends."""
    for _ in range(int(within_s / _LOOK_S)):
        try:
            seen: str | None = victim.status()
        except psutil.NoSuchProcess:
            return status is None
        if (None if seen == psutil.STATUS_ZOMBIE else seen) == status:
            return True
        await asyncio.sleep(_LOOK_S)
    return False
