"""Many seeds, in order; what became of each, and the story of the one that fails."""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

import torch

from runtime.process_life import die_with_parent
from tests.explore_handoff.scenario import Scenario
from tests.explore_handoff.world import Violation, World


@dataclass(frozen=True)
class Explored:
    """One world. `broken` is the rule that did not hold and the story, or empty."""

    seed: int
    num_handoffs: int
    broken: str = ""
    happened: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    groups: bool = False

    @property
    def again(self) -> str:
        """The command that runs it alone."""
        return f"make explore-handoff SEEDS=1 FROM={self.seed}{' GROUPS=1' * self.groups}"


def explore_seed(seed: int, groups: bool = False) -> Explored:
    """The world of one seed. `groups`: one of those that have groups of ranks."""
    world = World(Scenario.grouped(seed) if groups else Scenario.random(seed))
    broken = ""
    try:
        world.run()
    except Violation as violation:
        broken = str(violation)
    return Explored(seed, len(world.clients), broken, world.story.happened, world.outcomes, groups)


def explored(seed: int, groups: bool = False) -> Explored:
    """The same, if no rule was broken."""
    found = explore_seed(seed, groups)
    assert not found.broken, f"seed {seed}, at {found.broken}\n{found.again}"
    return found


def explore(seeds: range, num_jobs: int, groups: bool = False) -> Iterator[Explored]:
    """Each of `seeds`, in their order, on `num_jobs` processes."""
    if num_jobs == 1:
        yield from (explore_seed(seed, groups) for seed in seeds)
        return
    with ProcessPoolExecutor(num_jobs, get_context("spawn"), _begin_worker, (os.getpid(),)) as pool:
        for start in range(seeds.start, seeds.stop, 200):  # a night's worth is not queued at once
            part = range(start, min(start + 200, seeds.stop))
            yield from pool.map(partial(explore_seed, groups=groups), part, chunksize=5)


def _begin_worker(parent_pid: int) -> None:
    """In each process of the pool: one thread of its own, and it ends with its parent, however that ends."""
    die_with_parent(parent_pid)
    torch.set_num_threads(1)
