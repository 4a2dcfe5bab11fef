"""Gives the executor its operations, in their order: each plan complete, with the step that all ranks have agreed on.

    planner --operation--> waiting --every rank has announced the step of the oldest plan--> executor

All that follows a plan waits behind it. A worker without a group has nobody to ask: nothing waits, and its plans carry
no step.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from protocol.messages_group import StepShape
from scheduler.agreement import Agreement, wants_graph
from scheduler.draft_shape import DraftShape
from scheduler.plan import Operation, Plan


class Steps:
    """`submit` gives an operation to the executor. `agreement` is with the other ranks of the group; None: there are
    none. `shape`: of the executor's draft. `max_graphed`: see Runner."""

    def __init__(
        self,
        submit: Callable[[Operation], None],
        agreement: Agreement | None,
        shape: DraftShape,
        max_graphed: int = 0,
    ) -> None:
        self.agreement = agreement
        self._submit, self._shape, self._max_graphed = submit, shape, max_graphed
        self._waiting: deque[Operation] = deque()  # a plan whose step is not agreed yet, and what follows it

    @property
    def is_called(self) -> bool:
        """Whether other ranks have announced a step for which this one has no plan."""
        return self.agreement is not None and self.agreement.is_called

    def submit(self, operation: Operation) -> None:
        """Gives the executor this operation, or lets it wait."""
        if self.agreement is None:
            self._submit(operation)
            return
        self._waiting.append(operation)
        self.go_on()

    def go_on(self) -> None:
        """Gives the executor what need not wait any more. Called when rows of other ranks may have come."""
        while self._waiting:
            operation = self._waiting[0]
            if isinstance(operation, Plan):
                if (step := self._agreed(operation)) is None:
                    return
                operation = replace(operation, step=step)
            self._waiting.popleft()
            self._submit(operation)

    def _agreed(self, plan: Plan) -> StepShape | None:
        """The step of this plan, once all ranks have announced it. This one announces it first."""
        agreement = self.agreement
        assert agreement is not None, "without other ranks nothing waits"
        if not agreement.is_announced:
            num_tokens = plan.num_tokens(self._shape.num_verified(plan.num_steps))
            of_group, has_chunks = (self._max_graphed, agreement.size), bool(plan.chunks)
            agreement.announce(num_tokens, wants_graph=wants_graph(num_tokens, *of_group, has_chunks=has_chunks))
        step = agreement.shape
        if step is not None:
            agreement.launched()
        return step
