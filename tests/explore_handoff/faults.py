"""The faults of a world, by name. A fault picks its victim at random when it happens; without a victim nothing happens.

The story counts the faults that really happened. scenario.py decides when they happen, and how often.
"""

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from tests.explore_handoff.gateway import GatewayProcess
from tests.explore_handoff.network import Connection
from tests.explore_handoff.workers import Surroundings, WorkerProcess


class Stage(Protocol):
    """The world, as faults know it."""

    surroundings: Surroundings
    workers: list[WorkerProcess]  # alive
    gateway: GatewayProcess

    def kill(self, worker: WorkerProcess, restart_s: float, *, silently: bool) -> None:
        """The process ends here; it is started again after a while."""
        ...

    def kill_gateway(self, restart_s: float) -> None:
        """The same of the gateway."""
        ...


Fault = Callable[[Stage, random.Random], None]
OfWorker = Callable[[Stage, random.Random, WorkerProcess], None]


def kill(stage: Stage, rng: random.Random, worker: WorkerProcess) -> None:
    """It ends: its peers see it at once, or never (its machine is gone)."""
    silently = rng.random() < 0.4
    _tell(stage, worker.name, "killed", "its machine is gone" if silently else "peers see it")
    stage.kill(worker, rng.uniform(0.1, 1.5), silently=silently)


def pause(stage: Stage, rng: random.Random, worker: WorkerProcess) -> None:
    """SIGSTOP, and SIGCONT some time later: before or after it is declared lost."""
    seconds = rng.choice((0.3, 1.5, 3.5)) * rng.random()
    _tell(stage, worker.name, "paused", f"for {seconds:.3f} s")
    worker.pause(seconds)


def sleep(stage: Stage, rng: random.Random, worker: WorkerProcess) -> None:
    """It is stopped until it is lost, and wakes. No rank of a group: such a one is refused."""
    if worker.group is None:
        seconds = rng.uniform(2.1, 4.0)
        _tell(stage, worker.name, "sleeps", f"for {seconds:.3f} s")
        worker.pause(seconds)


def leave(stage: Stage, rng: random.Random, worker: WorkerProcess) -> None:
    """SIGTERM, or two of them: then it ends at once."""
    bound_s = rng.choice((0.0, 0.1, 3.0)) * rng.random()
    _tell(stage, worker.name, "leaving", f"within {bound_s:.3f} s")
    worker.leave(bound_s)


def hang(stage: Stage, rng: random.Random, worker: WorkerProcess) -> None:
    """Its next launch never ends."""
    worker.forward.hangs = True


def fail(stage: Stage, rng: random.Random, worker: WorkerProcess) -> None:
    """Its next forward raises, or every one from now on."""
    worker.fails_next, worker.fails_always = True, rng.random() < 0.4


def gateway_pause(stage: Stage, rng: random.Random) -> None:
    """The gateway does nothing for a while."""
    seconds = rng.choice((0.3, 1.5, 3.5)) * rng.random()
    _tell(stage, stage.gateway.name, "gateway paused", f"for {seconds:.3f} s")
    stage.gateway.pause(seconds)


def gateway_kill(stage: Stage, rng: random.Random) -> None:
    """The gateway ends, and comes back."""
    _tell(stage, stage.gateway.name, "gateway killed", "its clients are gone")
    stage.kill_gateway(rng.uniform(0.05, 1.0))


def cut_control(stage: Stage, rng: random.Random) -> None:
    """A worker's connection to the gateway."""
    _cut(stage, rng, "control cut", [each for each in _connections(stage) if each.router.owner is stage.gateway])


def cut_peer(stage: Stage, rng: random.Random) -> None:
    """A connection of a decode worker to a prefill worker."""
    _cut(stage, rng, "peer cut", [each for each in _connections(stage) if each.router.owner is not stage.gateway])


def cut_data(stage: Stage, rng: random.Random) -> None:
    """A connection on which KV travels."""
    plane = stage.surroundings.plane
    if plane.connections:
        connection = rng.choice(plane.connections)
        _tell(stage, connection.source.name, "data cut", f"to {connection.endpoint}")
        plane.cut(connection)


def part(stage: Stage, rng: random.Random) -> None:
    """Nothing passes between two processes for a while; what is sent waits."""
    here, there = _two(stage, rng)
    now, seconds = stage.surroundings.agenda.now, rng.choice((0.3, 1.5, 3.5)) * rng.random()
    _tell(stage, here, "parted", f"from {there} for {seconds:.3f} s")
    stage.surroundings.network.weather.parted[frozenset((here, there))] = now + seconds


def slow(stage: Stage, rng: random.Random) -> None:
    """Everything between two processes takes much longer for a while."""
    here, there = _two(stage, rng)
    factor, seconds = rng.choice((5.0, 30.0)), rng.uniform(0.1, 1.0)
    _tell(stage, here, "slowed", f"to {there}, {factor:.0f} times, for {seconds:.3f} s")
    weather, now = stage.surroundings.network.weather, stage.surroundings.agenda.now
    weather.slow[frozenset((here, there))] = (factor, now + seconds)


def full(stage: Stage, rng: random.Random) -> None:
    """The next messages that a worker sends find their queue full."""
    if stage.workers:
        rng.choice(stage.workers).context.num_to_refuse += rng.choice((1, 1, 3))


def _hits_any(fault: OfWorker) -> Fault:
    def hit(stage: Stage, rng: random.Random) -> None:
        if stage.workers:
            fault(stage, rng, rng.choice(stage.workers))

    return hit


def _hits_a_rank(fault: OfWorker) -> Fault:
    def hit(stage: Stage, rng: random.Random) -> None:
        if ranks := [each for each in stage.workers if each.group is not None]:
            fault(stage, rng, rng.choice(ranks))

    return hit


KINDS: Mapping[str, Fault] = {
    "kill": _hits_any(kill),
    "pause": _hits_any(pause),
    "sleep": _hits_any(sleep),
    "leave": _hits_any(leave),
    "hang": _hits_any(hang),
    "fail": _hits_any(fail),
    "rank kill": _hits_a_rank(kill),
    "rank pause": _hits_a_rank(pause),
    "rank hang": _hits_a_rank(hang),
    "rank fail": _hits_a_rank(fail),
    "gateway pause": gateway_pause,
    "gateway kill": gateway_kill,
    "cut control": cut_control,
    "cut peer": cut_peer,
    "cut data": cut_data,
    "part": part,
    "slow": slow,
    "full": full,
}


def _connections(stage: Stage) -> list[Connection]:
    return [each for each in stage.surroundings.network.connections if each.whole]


def _cut(stage: Stage, rng: random.Random, kind: str, connections: list[Connection]) -> None:
    if not connections:
        return
    connection = rng.choice(connections)
    notices = [rng.choice((0.0, 0.0, 0.02, 0.5)) * rng.random() for _ in range(2)]
    names = connection.dealer.owner.name, connection.router.owner.name
    _tell(stage, names[0], kind, f"to {names[1]}; it notices after {notices[0]:.3f} s, the other {notices[1]:.3f} s")
    stage.surroundings.network.cut(connection, *notices)


def _two(stage: Stage, rng: random.Random) -> tuple[str, str]:
    names = [stage.gateway.name, *(worker.name for worker in stage.workers)]
    here, there = (names * 2)[:2] if len(names) < 2 else rng.sample(names, 2)
    return here, there


def _tell(stage: Stage, who: str, kind: str, text: str) -> None:
    stage.surroundings.story.fault(stage.surroundings.agenda.now, who, kind, text)
