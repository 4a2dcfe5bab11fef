"""The books of one epoch of a group: what each rank has announced, launched and entered, and the rules of it.

announced <= given + 1       a rank announces a step once its executor has got the plan of the one before
given <= launched + DEPTH    an executor that waits for lengths or masks holds few plans
launched <= all announced    nothing is launched that was not agreed
entered = 2 x num_layers     of every launch, whatever it holds
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.messages_group import StepShape
from scheduler.agreement import Agreement
from scheduler.execution.answers import Masking
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.executor import Executor
from scheduler.execution.launch import Launch
from scheduler.plan import Plan
from tests.doubles.collectives_simulated import GroupLog
from tests.explore.failing import wrap_segments

DEPTH = 2  # launches of a rank that are planned and not over
GRAPHED = 6  # tokens of the largest launch for which a rank of a group wants a graph


@dataclass(eq=False)
class RankBooks:
    """Begins without ranks."""

    collectives: GroupLog[Any]
    epoch: int
    agreements: list[Agreement] = field(default_factory=list)
    announced: list[int] = field(default_factory=list)  # by rank: its newest step
    num_launched: list[int] = field(default_factory=list)
    num_idle: int = 0  # launches without tokens

    def agree(self) -> Agreement:
        """Of the next rank, with those that come before and after it."""
        agreement = Agreement(self.epoch, len(self.agreements), self.collectives.size)
        self.agreements.append(agreement)
        for numbers in (self.announced, self.num_launched):
            numbers.append(0)
        return agreement

    def watch(self, executor: Executor) -> None:
        """Checks each launch of a rank, when it is enqueued and when its forward has run."""
        launcher, rank = executor.launcher, executor.device.rank
        enqueue = launcher.enqueue

        def computed(segment: Callable[[Launch], None], launch: Launch) -> None:
            segment(launch)
            if executor.device.group_error is None:
                self._computed(rank, launch.step.step, 2 * executor.runner.config.num_layers)

        def enqueued(plan: Plan, running: ScheduleBatch, step: StepShape, masking: Masking | None) -> Launch:
            self._launches(rank, step)
            return enqueue(plan, running, step, masking)

        wrap_segments(launcher, "verify", "compute", computed)  # they run the target's forward
        vars(launcher)["enqueue"] = enqueued

    def check(self) -> None:
        """At most one step ahead, and no launch that was not agreed."""
        lowest = min(self.announced)
        for rank, (announced, launched) in enumerate(zip(self.announced, self.num_launched, strict=True)):
            given = self.agreements[rank].step - 1
            assert launched <= lowest, f"rank {rank} has launched step {launched}; not all have announced it: {self}"
            assert announced <= given + 1, f"rank {rank} has announced step {announced} before it went on to {given}"
            assert given <= launched + DEPTH, f"rank {rank} holds the plans of steps {launched + 1} to {given}"

    def check_rest(self, planned: Sequence[int]) -> None:
        """At rest all ranks have launched the same steps, and entered the same collectives. `planned`: by rank."""
        assert len(set(planned)) == 1, f"the ranks have planned {planned} launches"
        assert self.num_launched == planned == self.announced, f"planned {planned}, {self}"
        logs = self.collectives.logs
        assert all(log == logs[0] for log in logs), "ranks entered other collectives"
        assert not any(agreement.missing or agreement.shape for agreement in self.agreements)

    def stuck(self) -> str:
        """Who waits for whom, if the group does not go on."""
        said = [self.collectives.missing()]
        for rank, agreement in enumerate(self.agreements):
            if missing := agreement.missing:
                said.append(
                    f"rank {rank} knows of step {agreement.step}, which ranks {missing} have not announced to it"
                )
        return "; ".join(filter(None, said))

    def _launches(self, rank: int, step: StepShape) -> None:
        self.num_launched[rank] += 1
        assert step is not None, f"rank {rank} launches step {self.num_launched[rank]}, which is not agreed: {self}"
        assert step.padded, f"all ranks are idle, and launch step {step.step}"
        assert step.step == self.num_launched[rank], f"rank {rank} launches step {step.step}: {self}"
        self.num_idle += not step.num_tokens[rank]

    def _computed(self, rank: int, step: int, expected: int) -> None:
        entered = self.collectives.num_calls(rank, step)
        assert entered == expected, f"rank {rank} has entered {entered} collectives in step {step}, not {expected}"

    def __str__(self) -> str:
        return f"announced {self.announced}, launched {self.num_launched}"
