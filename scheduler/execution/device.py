"""What the launches and copies of one executor share: the model, memory, streams and the FutureMap."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.errors import GroupBroken
from runtime.clock import Clock
from scheduler.execution.future_map import FutureMap
from scheduler.execution.histories import Histories
from scheduler.execution.page_table import PageTable
from scheduler.execution.streams import Event, Segment, Stream


@dataclass(eq=False)
class Device:
    """Only the scheduler thread uses it, save `guarded`, which runs within a stream."""

    runner: Runner
    kv: PagedKv
    page_table: PageTable
    future_map: FutureMap
    histories: Histories
    forward: Stream
    schedule: Stream
    staging: Stream  # copies beside the launches; the forward stream itself where nothing is copied beside them
    forward_clock: Clock | None = None  # notes when forwards end
    debug: bool = False
    rank: int = 0  # in the group, whose other ranks have devices of their own
    copy_error: Exception | None = None  # why a copy has failed
    group_error: GroupBroken | None = None  # why no other rank can trust this one any more

    def enqueue(self, segments: list[Segment], used: object) -> Event:
        """Enqueues segments of a launch on the forward stream. Returns an event that is done when they are."""
        self.forward.wait(self.schedule.record())
        self.forward.launch(segments, used)
        return self.forward.record()

    def check_group(self) -> None:
        """Within a stream, before a forward of the target: raises if one has failed. Its collectives would meet those
        of the step that failed, in which the other ranks still are."""
        if self.group_error is not None:
            raise self.group_error

    def guarded(self, copy: Callable[..., None]) -> Callable[..., None]:
        """`copy`, to run within a stream. A failure ends the worker, because it leaves unknown pages incomplete."""
        return partial(self._run_copy, copy)

    def _run_copy(self, copy: Callable[..., None], *tensors: Tensor) -> None:
        try:
            copy(*tensors)
        except Exception as error:  # noqa: BLE001 - raised again on the scheduler thread
            self.copy_error = error
