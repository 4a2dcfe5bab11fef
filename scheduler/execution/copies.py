"""Copies of KV pages that an executor was given, in order with its launches.

CopyPages, WriteDraft   on the forward stream, between launches
StageIn, Fill           on the staging stream, beside launches that do not use the pages
Spill                   on the staging stream, behind the launches that have written the pages
"""

from collections.abc import Callable
from functools import wraps
from typing import assert_never

from torch import Tensor

from model.host_copies import HostCopies
from model.inputs import int64_column
from scheduler.execution.device import Device
from scheduler.execution.streams import Event, Stream
from scheduler.plan import CopyPages, Done, Fill, Spill, StageIn, WriteDraft

Copy = CopyPages | StageIn | Spill | Fill | WriteDraft


class Copies:
    """`host` is where KV of preempted choices is kept. `write_draft` runs on the forward stream."""

    def __init__(self, device: Device, host: HostCopies | None, write_draft: Callable[[], None]) -> None:
        self._device = device
        self._host = host
        self._write_draft = write_draft
        self._in_flight: list[tuple[int, Event, tuple[Tensor, ...]]] = []  # (ticket, it is done, what it reads)

    def __len__(self) -> int:
        return len(self._in_flight)

    def enqueue(self, copy: Copy) -> None:
        """Enqueues a copy behind the launches before it."""
        kv, forward, staging = self._device.kv, self._device.forward, self._device.staging
        match copy:
            case WriteDraft():
                self._launch(forward, copy, self._write_draft)
            case CopyPages():
                self._launch(forward, copy, kv.copy_pages, copy.sources, copy.targets)
            case StageIn():
                self._launch(staging, copy, self._stage_in, copy.pages, copy.sources, copy.targets)
            case Spill():
                staging.wait(forward.record())  # the launches that write these pages
                self._launch(staging, copy, self._host_memory.spill, copy.pages, copy.host_pages)
            case Fill():
                self._launch(staging, copy, self._host_memory.fill, copy.host_pages, copy.pages)
            case _:
                assert_never(copy)

    def over(self) -> list[Done]:
        """The copies that are over since the last call."""
        over = [copy for copy in self._in_flight if copy[1].done()]  # in any order: they run on two streams
        for copy in over:
            self._in_flight.remove(copy)
        return [Done(ticket) for ticket, _, _ in over]

    @property
    def _host_memory(self) -> HostCopies:
        assert self._host is not None, "the planner has host pages, the executor has none"
        return self._host

    def _stage_in(self, staged_N: Tensor, sources_N: Tensor, targets_N: Tensor) -> None:
        self._device.kv.stage_in(staged_N)
        self._device.kv.copy_pages(sources_N, targets_N)

    def _launch(self, stream: Stream, copy: Copy, run: Callable[..., None], *numbers: tuple[int, ...]) -> None:
        """Enqueues `run` with tensors of page numbers, which live until it is done."""
        tensors = tuple(int64_column(pages, self._device.kv.device) for pages in numbers)
        stream.wait(self._device.schedule.record())

        @wraps(run)
        def told(*numbers: Tensor) -> None:
            stream.tell()
            run(*numbers)

        stream.launch([self._device.guarded(told)], *tensors)
        self._in_flight.append((copy.ticket, stream.record(), tensors))
