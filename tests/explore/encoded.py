"""An executor whose operations and outcomes cross a wire as bytes, as if it ran in another process."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from model.host_copies import HostCopies
from model.paged_kv import PagedKv
from model.runner import Runner
from scheduler.draft_shape import DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import InlineStream
from scheduler.plan import OPERATIONS, OUTCOMES, Operation, Outcome, Plan, StepResult
from scheduler.speculation.modes import launches_for


class Encoded:
    """Submits what it decodes. `submitting` is called with each plan before it is submitted."""

    def __init__(self, executor: Executor, submitting: Callable[[Plan], None]) -> None:
        self.executor = executor
        self.sent: list[bytes] = []
        self.results: list[StepResult] = []
        self._submitting = submitting

    def submit(self, operation: Operation) -> None:
        """Encodes, decodes, and submits."""
        self.sent.append(OPERATIONS.encode(operation))
        decoded = OPERATIONS.decode(self.sent[-1])
        assert decoded == operation, "a plan holds something that is not plain data"
        if isinstance(decoded, Plan):
            self._submitting(decoded)
        self.executor.submit(decoded)

    def poll(self) -> Sequence[Outcome]:
        """Outcomes that were encoded and decoded."""
        outcomes = [OUTCOMES.decode(OUTCOMES.encode(outcome)) for outcome in self.executor.poll()]
        self.results += [outcome for outcome in outcomes if isinstance(outcome, StepResult)]
        return outcomes


def replayed(sent: Sequence[bytes], runner: Runner, like: Executor, shape: DraftShape) -> list[StepResult]:
    """The results of the same operations on an executor that begins empty, one after the other."""
    num_rows, max_pages = like.page_table.req_to_page.shape
    with _disable_current_modes():
        kv = PagedKv(like.kv.layout, like.kv.num_pages)
        host = None if like.host is None else HostCopies(kv, like.host.memory.num_pages)
        sizes: dict[str, Any] = {"num_rows": num_rows, "max_pages": max_pages, "host": host}
        executor = Executor(
            runner,
            kv,
            forward=InlineStream(),
            schedule=InlineStream(),
            launches=launches_for(runner.draft, shape),
            **sizes,
        )
        results: list[StepResult] = []
        for raw in sent:
            executor.submit(OPERATIONS.decode(raw))
            results += [outcome for outcome in executor.poll() if isinstance(outcome, StepResult)]
    return results
