"""The sockets between the ranks of one group, and how the ranks find one another at the start.

    every rank    binds ipc://FOLDER/rank-N, and dials each other one
    RankHello     to all others, twice: when the process has started, and when its model is loaded

The folder is open to this user only, so the sockets need no keys. Nothing between ranks may be dropped in silence: what
cannot be read or sent breaks the group.
"""

import os
import stat
from collections import deque
from pathlib import Path

import zmq

from protocol.errors import ConfigError, GroupBroken, Unavailable, WireError, brief
from protocol.messages_group import TO_RANK, GroupPlace, RankHello, ToRank
from runtime.bus import MAX_RECEIVE
from runtime.clock import Clock
from runtime.installation import baton_version
from runtime.process_life import StopSignal
from worker.group_watch import JOIN_S

LINGER_MS = 200  # for the last messages of a rank that ends
LOOK_S = 1.0  # between two looks at the clock while it waits for hellos


class RankSockets:
    """Those of the rank at `place`. ConfigError if it cannot bind its own in `folder`.

    They have a ZeroMQ context of their own: they are open before the model is loaded, and close in at most LINGER_MS.
    """

    def __init__(self, place: GroupPlace, folder: str) -> None:
        self.place = place
        self._hellos: dict[int, deque[RankHello]] = {rank: deque() for rank in self.others}
        self._early: list[ToRank] = []  # from ranks that serve already
        _check_private(folder)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self.inbox = self._open(zmq.PULL)
            self.inbox.bind(_endpoint(folder, place.rank))
            self._outboxes = {rank: self._open(zmq.PUSH) for rank in self.others}
            for rank, outbox in self._outboxes.items():
                outbox.connect(_endpoint(folder, rank))
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"group_folder: got {folder!r}, expected where sockets can be made ({error})") from error

    @property
    def others(self) -> tuple[int, ...]:
        """The other ranks."""
        return tuple(rank for rank in range(self.place.size) if rank != self.place.rank)

    def send(self, message: ToRank) -> None:
        """Sends to all others. GroupBroken if one of them reads nothing."""
        raw = TO_RANK.encode(message)
        for rank, outbox in self._outboxes.items():
            try:
                outbox.send(raw, zmq.NOBLOCK)
            except zmq.Again as error:
                raise GroupBroken(f"rank {rank} reads nothing of what is sent to it") from error

    def receive(self) -> list[ToRank]:
        """What has arrived, in order. GroupBroken if something cannot be read, or was not sent to this group."""
        messages, self._early = self._early, []
        for _ in range(MAX_RECEIVE):
            try:
                messages.append(self._read(self.inbox.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
        return messages

    def meet(self, model: str, stop: StopSignal, clock: Clock) -> bool:
        """Says hello, and waits until every rank has. Called twice: `model` is "" before it is loaded, then its digest.

        False if a stop signal has come. ConfigError if a rank differs from this one. Unavailable if one never comes.
        """
        own = RankHello(self.place, baton_version(), model)
        self.send(own)
        deadline = clock.now() + JOIN_S
        while missing := self._missing():
            if stop.is_set():
                return False
            if clock.now() >= deadline:
                step = "loaded its model" if model else "started"
                raise Unavailable(f"rank {missing[0]} of group {self.place.group!r} has not {step} in {JOIN_S:.0f} s")
            self._wait(stop, min(LOOK_S, deadline - clock.now()))
        for hellos in self._hellos.values():
            _check_alike(own, hellos.popleft())
        return True

    def _missing(self) -> list[int]:
        """Takes what has arrived. Returns the ranks of which a hello is still to come."""
        for message in self.receive():
            if isinstance(message, RankHello):
                self._hellos[message.place.rank].append(message)
            else:
                self._early.append(message)
        return [rank for rank, hellos in self._hellos.items() if not hellos]

    def close(self) -> None:
        """Closes every socket, once its last messages have had LINGER_MS to leave. A second call does nothing."""
        self._context.destroy(linger=LINGER_MS)

    def _open(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, TO_RANK.max_bytes)
        return socket

    def _read(self, raw: bytes) -> ToRank:
        try:
            message = TO_RANK.decode(raw)
        except WireError as error:
            raise GroupBroken(f"a rank has sent what cannot be read: {error.message}") from error
        place = message.place if isinstance(message, RankHello) else message
        if place.rank not in self._hellos or place.epoch != self.place.epoch:
            who, mine = f"rank {place.rank} of epoch {place.epoch}", f"rank {self.place.rank} of {self.place.size}"
            raise GroupBroken(f"{who} has sent {type(message).__name__} to {mine} of epoch {self.place.epoch}")
        return message

    def _wait(self, stop: StopSignal, timeout_s: float) -> None:
        poller = zmq.Poller()
        poller.register(self.inbox, zmq.POLLIN)
        poller.register(stop.fd, zmq.POLLIN)
        poller.poll(max(0, int(timeout_s * 1e3)))
        stop.clear_wakeup()


def _endpoint(folder: str, rank: int) -> str:
    return f"ipc://{folder}/rank-{rank}"


def _check_private(folder: str) -> None:
    """Raises ConfigError unless only this user may use the folder: another one could speak for a rank."""
    expected = "expected a folder that is open to this user only"
    try:
        status = Path(folder).stat()
    except OSError as error:
        raise ConfigError(f"group_folder: got {brief(folder)}, {expected} ({error.strerror})") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ConfigError(f"group_folder: got {brief(folder)}, {expected}")


def _check_alike(own: RankHello, other: RankHello) -> None:
    """ConfigError names the first thing in which the hello of another rank differs."""
    fields = {
        "group": (own.place.group, other.place.group),
        "size of the group": (own.place.size, other.place.size),
        "version of Baton": (own.version, other.version),
        "model": (own.model, other.model),
    }
    for name, (mine, theirs) in fields.items():
        if mine != theirs:
            who = f"rank {other.place.rank} of group {own.place.group!r}"
            raise ConfigError(f"{who}: its {name} is {theirs!r}, that of rank {own.place.rank} is {mine!r}")
