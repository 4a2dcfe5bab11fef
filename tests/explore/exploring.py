"""Many seeds under every strategy, in order; the first that fails is told with its trace and how to run it again."""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from traceback import format_exception

from runtime.process_life import die_with_parent
from tests.doubles.strategies import Strategy
from tests.doubles.streams_simulated import ScheduleViolation
from tests.explore.run import Run
from tests.explore.workload import Workload

STRATEGIES = tuple(strategy for strategy in Strategy if strategy is not Strategy.EXHAUSTIVE)


@dataclass(frozen=True)
class Failure:
    """A schedule that went wrong. `text` is what went wrong, with the trace."""

    seed: int
    strategy: Strategy
    text: str
    detect: bool = False
    groups: bool = False

    @property
    def again(self) -> str:
        """The command that runs it alone."""
        options = " DETECT=1" * self.detect + " GROUPS=1" * self.groups
        return f"make explore SEEDS=1 FROM={self.seed} STRATEGIES={self.strategy}{options}"


def explore_seed(seed: int, strategies: Sequence[Strategy], detect: bool, groups: bool = False) -> Failure | None:
    """One workload under each strategy, until one fails; with `detect` under the race detector. `groups`: one of those
    that have groups of ranks."""
    workload = Workload.grouped(seed) if groups else Workload.random(seed)
    for strategy in strategies:
        try:
            Run(workload, strategy, seed, detect=detect).run()
        except ScheduleViolation as violation:
            return Failure(seed, strategy, str(violation) + _notes(violation), detect, groups)
    return None


def explore(
    seeds: range, strategies: Sequence[Strategy], num_jobs: int, detect: bool, groups: bool = False
) -> Iterator[Failure | None]:
    """What became of each of `seeds`, in their order, on `num_jobs` processes."""
    _be_quiet()
    if num_jobs == 1:
        for seed in seeds:
            yield explore_seed(seed, strategies, detect, groups)
        return
    with ProcessPoolExecutor(num_jobs, get_context("spawn"), _begin_worker, (os.getpid(),)) as pool:
        for start in range(seeds.start, seeds.stop, 200):  # a night's worth is not queued at once
            part = range(start, min(start + 200, seeds.stop))
            one = partial(explore_seed, strategies=tuple(strategies), detect=detect, groups=groups)
            yield from pool.map(one, part, chunksize=5)


def _begin_worker(parent_pid: int) -> None:
    """In each process of the pool: it ends with its parent, however that ends."""
    die_with_parent(parent_pid)
    _be_quiet()


def _be_quiet() -> None:
    """What the product warns of, frames that come too late above all, is what is explored here, and no news."""
    logging.getLogger("baton").addHandler(logging.NullHandler())


def _notes(violation: ScheduleViolation) -> str:
    notes = "\n".join(["", *getattr(violation, "__notes__", ())])
    cause = violation.__cause__
    return notes if cause is None else f"{notes}\ncaused by:\n" + "".join(format_exception(cause)[-6:])
