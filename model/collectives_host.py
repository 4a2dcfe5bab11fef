"""The collectives of ranks that compute on the CPUs of one host: shared memory for the values, sockets for the words.

    rank r    puts its values into its region, says its tag to each other rank, hears theirs, takes their values

What waits is woken by the kernel once for each rank that it waits for, with no thread between them. A rank that ends is
heard at once. Every rank maps the same two halves and uses them in turns: who puts values into a half again has heard
each rank say its next tag, so each has taken the values that were there.
Shapes: R ranks, P tokens of each rank, padded; E hidden; K parts that are given.
"""

import mmap
import os
import socket
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from ctypes import memmove
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.collectives import EXCHANGE, GATHER, Calls, Tag, check_tags
from protocol.errors import GroupBroken
from protocol.messages_group import GroupPlace, StepShape
from runtime.shared_memory import SharedMemory

REGION_BYTES: Final = 4 << 20  # of a rank in one half; what is more goes in rounds
_TAG: Final = struct.Struct(f"{len(Tag._fields)}q")
_RANK: Final = struct.Struct("q")


class HostCollectives:
    """See Collectives. One thread calls it; another one may read `doing`, and close it."""

    def __init__(self, place: GroupPlace, memory: mmap.mmap, others: Mapping[int, socket.socket]) -> None:
        """`others`: what is connected to each other rank, with time limits of its own."""
        self.rank, self.size = place.rank, place.size
        self._memory = torch.frombuffer(memory, dtype=torch.uint8)  # keeps it mapped
        self._address = self._memory.data_ptr()
        self._others = dict(sorted(others.items()))
        self._calls, self._num_rounds, self._is_closed = Calls(), 0, False
        for other in self._others.values():  # no sooner: a thread may be about to read from it
            weakref.finalize(self, other.close)

    @property
    def doing(self) -> str:
        """What it is at: "gather 3 of step 17"; "" between calls."""
        tag = self._calls.current
        return "" if tag is None else str(tag)

    @property
    def waits(self) -> bool:
        """See TorchCollectives. Here a busy host may hold up a call as well as another rank."""
        return False

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        return self._call(GATHER, own_PE.unsqueeze(0), 0, step)

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        return self._call(EXCHANGE, parts_RPE, self.rank, step)

    def close(self) -> None:
        """Leaves the group. A call that has not returned fails, here and at the other ranks."""
        self._is_closed = True
        for other in self._others.values():
            with suppress(OSError):  # the other rank has gone before
                other.shutdown(socket.SHUT_RDWR)

    def _call(self, operation: int, given_KPE: Tensor, part: int, step: StepShape) -> Tensor:
        """(R, P, E): this part of what each rank gives."""
        if self._is_closed:
            raise GroupBroken(f"rank {self.rank} has left its group")
        tag = self._calls.enter(operation, given_KPE, step)
        try:
            return self._in_rounds(given_KPE, part, tag)
        except OSError as error:
            raise GroupBroken(f"rank {self.rank}: {tag} has failed: {error}") from error
        finally:
            self._calls.leave()

    def _in_rounds(self, given_KPE: Tensor, part: int, tag: Tag) -> Tensor:
        """Copies as many bytes of each part as fit a region, in each round. Without bytes there is one empty round, so
        that ranks still meet. Takes part `part` of each rank.

        It copies by address: in a short step, an operation of torch takes as long as waking another rank.
        """
        num_parts, padded, hidden = given_KPE.shape
        given, taken = given_KPE.contiguous(), given_KPE.new_empty((self.size, padded, hidden))
        source, target, part_bytes = given.data_ptr(), taken.data_ptr(), padded * hidden * given.itemsize

        most = REGION_BYTES // num_parts
        for start in range(0, max(part_bytes, 1), most):
            num_bytes = min(most, part_bytes - start)
            half = self._address + self._num_rounds % 2 * self.size * REGION_BYTES
            self._num_rounds += 1
            for index in range(num_parts):
                own = half + self.rank * REGION_BYTES + index * num_bytes
                memmove(own, source + index * part_bytes + start, num_bytes)
            self._meet(tag)
            for rank in range(self.size):
                theirs = half + rank * REGION_BYTES + part * num_bytes
                memmove(target + rank * part_bytes + start, theirs, num_bytes)
        return taken

    def _meet(self, own: Tag) -> None:
        """Returns when every rank has put its values there. OSError if one has gone or does not come."""
        word, rank = _TAG.pack(*own), self.rank
        heard = {rank: word}
        try:
            for rank, other in self._others.items():  # noqa: B007 - an error names it
                other.send(word)
            for rank, other in self._others.items():
                heard[rank] = other.recv(_TAG.size)
                if not heard[rank]:
                    raise ConnectionError
        except BlockingIOError as error:
            raise TimeoutError(f"rank {rank} does not come") from error
        except OSError as error:
            raise ConnectionError(f"rank {rank} has gone") from error
        if any(theirs != word for theirs in heard.values()):
            check_tags([Tag(*_TAG.unpack(heard[rank])) for rank in range(self.size)])


def open_host(place: GroupPlace, folder: str, meet: Callable[[], None], timeout_s: float) -> HostCollectives:
    """Connects a rank to all others. `meet` returns when each of them has got as far; OSError if one ends after that.

    A socket that listens takes connections before anybody accepts them. So each rank connects to those below it, then
    accepts those above it. Rank 0 makes the memory and hands its descriptor to the others.
    """
    others: dict[int, socket.socket] = {}
    with ExitStack() as undo, _listening(_path(folder, place.rank), place.size) as listener:
        meet()
        listener.settimeout(timeout_s)
        for rank in range(place.rank):
            others[rank] = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            others[rank].settimeout(timeout_s)
            others[rank].connect(_path(folder, rank))
            others[rank].send(_RANK.pack(place.rank))
        while len(others) < place.size - 1:
            other = undo.enter_context(listener.accept()[0])
            other.settimeout(timeout_s)
            if not (number := other.recv(_RANK.size)):
                raise ConnectionError("a rank has gone while the group connected")
            others[_RANK.unpack(number)[0]] = other

        memory = _hand_out_memory(others, place) if place.rank == 0 else _take_memory(others[0])
        for other in others.values():
            _limit(other, timeout_s)
        undo.pop_all()
    return HostCollectives(place, memory, others)


def _path(folder: str, rank: int) -> str:
    return str(Path(folder) / f"values-{rank}")


@contextmanager
def _listening(path: str, most: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        try:
            listener.listen(most)
            yield listener
        finally:
            os.unlink(path)


def _hand_out_memory(others: Mapping[int, socket.socket], place: GroupPlace) -> mmap.mmap:
    memory = SharedMemory(2 * place.size * REGION_BYTES)
    for other in others.values():
        socket.send_fds(other, [_RANK.pack(place.rank)], [memory.fd])
    return memory.mapping


def _take_memory(first: socket.socket) -> mmap.mmap:
    _, descriptors, _, _ = socket.recv_fds(first, _RANK.size, 1)
    if not descriptors:
        raise ConnectionError("rank 0 has gone while the group connected")
    (fd,) = descriptors
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def _limit(other: socket.socket, timeout_s: float) -> None:
    """Calls block in the kernel from now on, which Python's own time limit would do with one system call more."""
    other.settimeout(None)
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
