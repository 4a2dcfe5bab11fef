"""A random deployment under random load on simulated streams, and what must be true of it whatever the schedule.

Everything follows from the seed: topology, sizes, arrivals, cancels, and which work runs when. Pools are tight, so that
rows and pages are reused at once, and what was freed last is used first.
"""

import random
from dataclasses import dataclass, field

from protocol.request import SamplingParams
from scheduler.strategies import Decisions, Strategy
from scheduler.streams_simulated import Simulation
from tests.cluster import Cluster
from tests.decode.driving import expect_exact, expect_prefix, greedy, make_cluster, prompt_of

TOPOLOGIES = ("1U", "1P1D", "2P1D", "1P2D")
CONTEXT = 48


@dataclass(frozen=True)
class Arrival:
    """One request, and after how many steps its client leaves (-1: never)."""

    name: str
    at_step: int
    prompt: tuple[int, ...]
    params: SamplingParams
    num_choices: int
    cancel_at: int = -1


@dataclass(frozen=True)
class Workload:
    """What happens, but not when device work runs."""

    topology: str
    page_size: int
    chunk_size: int
    num_pages: int
    max_requests: int
    overlap: bool
    arrivals: tuple[Arrival, ...]

    @staticmethod
    def random(seed: int, num_requests: int = 7) -> "Workload":
        """A small one: a few requests, about forty steps."""
        rng = random.Random(f"workload {seed}")
        page_size = rng.choice((1, 4))
        longest = 3 * CONTEXT // page_size
        return Workload(
            topology=rng.choice(TOPOLOGIES),
            page_size=page_size,
            chunk_size=rng.choice((5, 9, 64)),
            num_pages=1 + rng.randint(longest // 2, longest),
            max_requests=rng.choice((3, 4, 6)),
            overlap=rng.random() < 0.9,
            arrivals=tuple(_arrival(rng, f"{seed}/{index}") for index in range(num_requests)),
        )


@dataclass
class Run:
    """One workload under one schedule. `run` raises what is wrong."""

    workload: Workload
    strategy: Strategy
    seed: int
    decisions: Decisions | None = None
    simulation: Simulation = field(init=False)
    num_steps: int = 0

    def run(self) -> None:
        """To the end: exact tokens, ledgers that add up after every step and are at rest at the end."""
        self.simulation = Simulation(self.strategy, self.seed, self.decisions)
        cluster = self._cluster()
        waiting, leaving = list(self.workload.arrivals), list(self.workload.arrivals)
        while waiting or leaving or not cluster.at_rest():
            for arrival in [each for each in waiting if each.at_step <= self.num_steps]:
                waiting.remove(arrival)
                cluster.assign(arrival.name, list(arrival.prompt), arrival.params, arrival.num_choices)
            for arrival in [each for each in leaving if each.at_step + each.cancel_at <= self.num_steps]:
                leaving.remove(arrival)
                if arrival.cancel_at >= 0:
                    cluster.cancel(arrival.name)
            progressed = cluster.step()
            self.simulation.point()
            cluster.check()
            self.num_steps += 1
            if not progressed:
                self.simulation.run_one()
            assert self.num_steps < 5000, self.simulation.violation("the deployment hangs")
        self._check(cluster)
        cluster.close()

    def _cluster(self) -> Cluster:
        load = self.workload
        return make_cluster(
            load.topology,
            page_size=load.page_size,
            chunk_size=load.chunk_size,
            num_pages=load.num_pages,
            max_requests=load.max_requests,
            overlap=load.overlap,
            max_context=CONTEXT,
            simulation=self.simulation,
        )

    def _check(self, cluster: Cluster) -> None:
        try:
            for arrival in self.workload.arrivals:
                if arrival.cancel_at >= 0:
                    for choice in range(arrival.num_choices):
                        _expect_cancelled(cluster, arrival, choice)
                else:
                    expect_exact(cluster, arrival.name, arrival.prompt, arrival.params, arrival.num_choices)
        except AssertionError as error:
            raise self.simulation.violation(f"wrong tokens in {self.workload}: {error}") from error


def _expect_cancelled(cluster: Cluster, arrival: Arrival, choice: int) -> None:
    """It may have ended before its client left."""
    if cluster.answers[arrival.name, choice].finish:
        expect_exact(cluster, arrival.name, arrival.prompt, arrival.params, arrival.num_choices)
    else:
        expect_prefix(cluster, arrival.name, arrival.prompt, arrival.params, choice)


def _arrival(rng: random.Random, name: str) -> Arrival:
    num_tokens = rng.choice((1, 2, 5, 9))
    eos = tuple(rng.sample(range(211), 12)) if rng.random() < 0.5 else ()
    return Arrival(
        name=name,
        at_step=rng.randrange(25),
        prompt=tuple(prompt_of(name, rng.randint(1, CONTEXT - num_tokens - 1))),
        params=greedy(num_tokens, eos_token_ids=eos),
        num_choices=rng.choice((1, 1, 1, 2)),
        cancel_at=rng.randrange(12) if rng.random() < 0.25 else -1,
    )
