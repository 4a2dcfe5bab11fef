"""Frames over ZMQ: a PUSH per peer at prefill, one PULL at decode on a port that the system chooses.

Payload is not copied here; pyzmq reports when it was read for the last time. Credit bounds what is in flight, so the
sending side has no other limit. The receiving side queues little from each connection.
"""

import os
from collections.abc import Sequence
from typing import Any, Final

import zmq

from protocol.errors import WireError
from runtime.bus import LinkWatch, bind_on_host, notice_silence
from runtime.curve import OPEN, Security, without_secret
from transfer.interfaces import PageMemory, Part, Pollable, Reading
from transfer.plan import FRAME_BYTES

RECEIVE_FRAMES = 1024  # per connection; beyond it TCP slows the sender
SCHEME = "tcp://"
NOT_NOW: Final = int(zmq.NOBLOCK)  # never wait
MORE_FOLLOWS: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class ZmqWire:
    """See transfer.interfaces.Wire. The caller owns `context` and ends it after close()."""

    def __init__(self, context: zmq.Context[Any], security: Security = OPEN) -> None:
        self._context = context
        self._security = security
        self._sockets: dict[int, zmq.Socket[Any]] = {}
        self._watches: dict[int, LinkWatch] = {}

    def connect(self, instance: int, endpoint: str) -> None:
        if not endpoint.startswith(SCHEME):
            raise WireError(f"data address {without_secret(endpoint)!r}, expected one that begins with {SCHEME}")
        push = self._context.socket(zmq.PUSH)
        push.setsockopt(zmq.LINGER, 0)
        push.setsockopt(zmq.SNDHWM, 0)
        notice_silence(push, with_beats=True)  # a connection may be idle for hours between two prompts

        watch = LinkWatch(push)
        try:
            unlocked = self._security.prepare_dial(push, endpoint)
            push.setsockopt(zmq.IPV6, int("[" in unlocked))
            push.connect(unlocked)
        except (zmq.ZMQError, WireError) as error:
            watch.close()
            push.close(0)
            raise WireError(f"data address {without_secret(endpoint)!r}: {error}") from error
        self._sockets[instance], self._watches[instance] = push, watch

    def send(self, instance: int, parts: Sequence[Part]) -> Reading | None:
        push = self._sockets[instance]
        header, *payload = parts
        frames = [zmq.Frame(part, track=True, copy=False) for part in payload]
        try:
            push.send(header, MORE_FOLLOWS if frames else NOT_NOW)
            for left, frame in zip(range(len(frames) - 1, -1, -1), frames, strict=True):
                push.send(frame, MORE_FOLLOWS if left else NOT_NOW, copy=False)
        except zmq.Again:
            return None
        if frames:
            os.sched_yield()  # on one core, otherwise libzmq's thread finds what was just summed no longer in the cache
        return zmq.MessageTracker(*(frame.tracker for frame in frames))

    def broken(self) -> list[int]:
        before = {instance: watch.num_broken for instance, watch in self._watches.items()}
        for watch in self._watches.values():
            watch.look()
        return [instance for instance, watch in self._watches.items() if watch.num_broken > before[instance]]

    def disconnect(self, instance: int) -> None:
        self._watches.pop(instance).close()
        self._sockets.pop(instance).close(0)

    def close(self) -> None:
        for instance in list(self._sockets):
            self.disconnect(instance)


class ZmqArrivals:
    """See transfer.interfaces.Arrivals."""

    backend = "zmq"
    is_ordered = True  # one connection from each sender; if it breaks, the sender gives up its transfers

    def __init__(self, memory: PageMemory, host: str, context: zmq.Context[Any], security: Security = OPEN) -> None:
        """Binds on `host`, where peers reach this machine; ConfigError if it is not its address. A peer that sends more
        than a frame of `memory` is disconnected. The caller owns `context` and ends it after close()."""
        self._pull = context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.LINGER, 0)
        self._pull.setsockopt(zmq.RCVHWM, RECEIVE_FRAMES)
        self._pull.setsockopt(zmq.MAXMSGSIZE, max(FRAME_BYTES, memory.layout.largest_page_bytes))
        self._pull.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self.address = bind_on_host(self._pull, host, security)

    def receive(self) -> Sequence[memoryview] | None:
        try:
            frame = self._pull.recv(NOT_NOW, copy=False)
        except zmq.Again:
            return None
        parts = [frame.buffer]
        while frame.more:
            frame = self._pull.recv(NOT_NOW, copy=False)
            parts.append(frame.buffer)
        return parts

    def pollables(self) -> list[Pollable]:
        return [self._pull]

    def meet(self, instance: int, export: bytes) -> None:
        """Nothing is read from prefill."""

    def lose(self, instance: int) -> None:
        """See meet."""

    def close(self) -> None:
        self._pull.close(0)
