"""Which collective a device is in: an event before and one behind each call, in the order of its stream.

    host     queues call 1, 2, 3, ... and goes on: no call blocks it
    device   call 1 is over | it has reached the event before call 2, and not the one behind it: it waits in call 2

Between two calls the device computes, and waits for no other rank.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from model.collectives import Tag

MANY: Final = 512  # calls; more than two steps of most models have


class _Queued(NamedTuple):
    """A call that the host has queued."""

    tag: Tag
    before: Any  # events of torch
    behind: Any


class DeviceCalls:
    """The calls that one rank has queued on a device. One thread calls it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queued: deque[_Queued] = deque()  # the oldest first
        self._unused: list[Any] = []  # events, to be recorded again

    @contextmanager
    def queued(self, tag: Tag) -> Iterator[None]:
        """Within it, the call is queued on the current stream."""
        before = self._recorded()
        yield
        self._queued.append(_Queued(tag, before, self._recorded()))
        if len(self._queued) > MANY:
            self._forget_past()

    @property
    def current(self) -> Tag | None:
        """The call that the device is in. Raises if the device is broken."""
        self._forget_past()
        return self._queued[0].tag if self._queued and self._queued[0].before.query() else None

    def _recorded(self) -> Any:
        event = self._unused.pop() if self._unused else torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _forget_past(self) -> None:
        while self._queued and self._queued[0].behind.query():
            _, *events = self._queued.popleft()
            self._unused += events
