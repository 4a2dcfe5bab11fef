"""Finds data races: it observes who reads and writes which elements of each tensor, and whether anything orders them.

It sees every torch operation (a TorchDispatchMode). Each operation belongs to an actor: a simulated stream, or the
scheduler thread with its schedule stream. Actors have vector clocks, which hold the events that an actor knows of.
A wait passes knowledge on, and so does an event that the host has seen done. A launch passes on what the host has seen,
but none of the host's own tensor work. Reads without an operation (tolist, numpy) are seen only if they are reported:
`touch`, `touch_bytes`.

Memory that Python gives back is written, too: torch's allocator gives it to the next tensor of the stream that made it,
while other streams may still use it. It waits only for streams whose launches have named it (`record_stream` on CUDA).
"""

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.doubles.torch_operations import kind_of, tensors_in

NOBODY, SEVERAL, LASTING = -1, -2, -3  # no actors; the last: whoever reads for a while
SCHEDULER = 0  # the actor of the scheduler thread and its schedule stream

Clock = dict[int, int]  # of each actor: its newest operation that is known to have happened
Elements = slice | np.ndarray[Any, np.dtype[np.int64]]


class Access(NamedTuple):
    """One operation, as a report names it. `where` is a segment or the scheduler."""

    actor: int
    where: str
    operation: str
    code: CodeType | None
    line: int

    def __str__(self) -> str:
        if self.code is None:
            return f"{self.where} ({self.operation})"
        file = "/".join(self.code.co_filename.split("/")[-2:])
        return f"{self.where} ({self.operation} in {self.code.co_name}, {file}:{self.line})"


@dataclass(eq=False, slots=True)
class _Trail:
    """What one actor did to one memory, be it writes or reads: for each element its newest access, and the newest."""

    numbers: np.ndarray[Any, np.dtype[np.int64]]
    newest: int = 0

    def add(self, number: int, elements: Elements) -> None:
        """One more access."""
        self.numbers[elements] = number
        self.newest = number


@dataclass(eq=False, slots=True)
class _Memory:
    """What became of one storage. Most are known to one actor only, and are gone before another comes: of those no more
    is kept than the newest accesses to the whole of it, as long as there are no others."""

    ref: "weakref.ref[torch.UntypedStorage]"  # it tells when Python gives the storage back
    item_size: int
    num_elements: int
    shape: Sequence[int]
    pool: int  # whose allocator it goes back to: an actor
    named_by: tuple[int, ...] = ()  # actors for which that allocator waits
    only_actor: int = NOBODY  # then the one, then SEVERAL
    whole_write: int = 0  # by the only actor
    whole_read: int = 0
    trails: dict[tuple[bool, int], _Trail] | None = None  # by (is a write, actor)

    def add(self, actor: int, number: int, elements: Elements, is_write: bool) -> None:
        """One more access, after it was asked what it is `unordered` with."""
        if self.only_actor == actor and self.trails is None and self._is_whole(elements):
            if is_write:
                self.whole_write = number
            else:
                self.whole_read = number
        else:
            self._trail(is_write, actor).add(number, elements)

    def unordered(self, actor: int, clock: Mapping[int, int], elements: Elements, is_write: bool) -> int:
        """An access by another actor that conflicts and that `clock` does not know; 0 if there is none."""
        if self.only_actor in (actor, NOBODY):
            self.only_actor = actor
            return 0
        self.only_actor, only_actor = SEVERAL, self.only_actor
        for (was_write, other), trail in self._trails(only_actor).items():
            known = clock.get(other, 0)
            if other == actor or trail.newest <= known or not (was_write or is_write):
                continue
            found = trail.numbers[elements]
            if found.size and int(found.max()) > known:
                return int(found.max())
        return 0

    def in_use(self, known: Mapping[int, int], pools: Sequence[int]) -> int:
        """An access that is not `known` to be over, and that its allocator does not wait for; 0 if there is none.

        `pools` are those of all actors.
        """
        if self.only_actor == NOBODY or (self.only_actor != SEVERAL and pools[self.only_actor] == self.pool):
            return 0
        for (_, actor), trail in self._trails(self.only_actor).items():
            may_run = trail.newest > known.get(actor, 0)
            if may_run and pools[actor] != self.pool and actor not in self.named_by:
                return trail.newest
        return 0

    def in_elements_of(self, tensor: Tensor) -> "_Memory":
        """The same memory, told apart by the elements of `tensor`. So far nobody has touched only a part of it."""
        assert self.trails is None, "this memory must be named before a part of it is touched"
        item_size = tensor.element_size()
        num_elements = -(-tensor.untyped_storage().nbytes() // item_size)
        return replace(self, item_size=item_size, num_elements=num_elements, shape=tensor.shape)

    def wrote(self, number: int) -> bool:
        """Whether an access was a write."""
        return any(is_write and number in trail.numbers for (is_write, _), trail in (self.trails or {}).items())

    def _is_whole(self, elements: Elements) -> bool:
        return isinstance(elements, slice) and (elements.stop or self.num_elements) - (elements.start or 0) == (
            self.num_elements
        )

    def _trail(self, is_write: bool, actor: int) -> _Trail:
        trails = self._trails(self.only_actor)
        if (is_write, actor) not in trails:
            trails[is_write, actor] = _Trail(np.zeros(self.num_elements, dtype=np.int64))
        return trails[is_write, actor]

    def _trails(self, only_actor: int) -> dict[tuple[bool, int], _Trail]:
        if self.trails is None:
            self.trails = {}
            for is_write, number in ((True, self.whole_write), (False, self.whole_read)):
                if number:
                    numbers = np.full(self.num_elements, number, dtype=np.int64)
                    self.trails[is_write, only_actor] = _Trail(numbers, number)
        return self.trails


class RaceDetector(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Used as a context manager around everything that is to be seen. `race` is the first that was found, or ""."""

    def __init__(self) -> None:
        super().__init__()
        self.race = ""
        self.num_seen = 0  # accesses
        self._actors = ["the scheduler"]
        self._clocks: list[Clock] = [{}]
        self._pools = [SCHEDULER]  # by actor: to whose allocator the memory goes back that it makes
        self._actor = SCHEDULER
        self._where = self._actors[SCHEDULER]
        # by number, 0 is none: what an Access is made of, as bare tuples, for which the garbage collector has no work
        self._operations: list[tuple[int, str, str, CodeType | None, int]] = [(SCHEDULER, "", "", None, 0)]
        self._memories: dict[int, _Memory] = {}
        self._names: list[tuple[Tensor, str]] = []  # kept alive: they are few and last as long as a worker
        self._addresses = torch.arange(0)

    # ---- order ----

    def actor(self, name: str, *, is_schedule: bool = False) -> int:
        """A new one: a stream. A schedule stream shares its memory with the scheduler thread, whose work it runs."""
        self._actors.append(f"{name} {len(self._actors)}")
        self._clocks.append({})
        self._pools.append(SCHEDULER if is_schedule else len(self._actors) - 1)
        return len(self._actors) - 1

    def clock(self, actor: int) -> Clock:
        """What it knows now, its own work with it: what an event recorded now passes on."""
        return dict(self._clocks[actor])

    def at_launch(self) -> Clock:
        """What a launch passes on: what the host has seen. The schedule stream's work comes only with a wait."""
        return {actor: known for actor, known in self._clocks[SCHEDULER].items() if actor != SCHEDULER}

    def learn(self, actor: int, clock: Mapping[int, int]) -> None:
        """`actor` goes on after everything that `clock` knows."""
        own = self._clocks[actor]
        for other, known in clock.items():
            own[other] = max(own.get(other, 0), known)

    @contextmanager
    def acting(self, actor: int, where: str) -> Iterator[None]:
        """What follows is done by `actor`."""
        before = self._actor, self._where
        self._actor, self._where = actor, where
        try:
            yield
        finally:
            self._actor, self._where = before

    # ---- accesses ----

    def name(self, tensor: Tensor, name: str) -> None:
        """Reports call this memory so; accesses to its bytes can be told by address. It must last as long as this.

        Accesses are told apart by the elements of `tensor`, also if the memory was made as another type.
        """
        self._names.append((tensor, name))
        memory = self._memory(tensor)
        if memory.item_size != tensor.element_size():
            self._memories[tensor.untyped_storage()._cdata] = memory.in_elements_of(tensor)

    def named(self, tensors: Iterable[Tensor], actor: int) -> None:
        """A launch on the stream `actor` uses them: the allocator does not reuse their memory before it has run."""
        for tensor in tensors:
            memory = self._memory(tensor)
            if actor not in memory.named_by:
                memory.named_by += (actor,)

    def touch(self, tensors: Iterable[Tensor], operation: str, *, is_write: bool = False) -> None:
        """An access that torch does not see: an opaque kernel, or the host reading."""
        number = self._number(operation)
        for tensor in tensors:
            if (place := self._place(tensor)) is not None:
                self._access(*place, number, is_write)

    def touch_bytes(
        self, view: memoryview, operation: str, *, is_write: bool = False, since: Clock | None = None
    ) -> None:
        """The same for bytes of a named memory; others are ignored. A read that began at `since` lasts until now."""
        if not view.nbytes:
            return
        address = np.frombuffer(view, dtype=np.uint8).ctypes.data
        for tensor, _ in self._names:
            offset = address - tensor.untyped_storage().data_ptr()
            if 0 <= offset < tensor.untyped_storage().nbytes():
                memory = self._memory(tensor)
                end = -(-(offset + view.nbytes) // memory.item_size)
                elements = slice(offset // memory.item_size, end)
                self._access(memory, elements, self._number(operation), is_write, since)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; to say so at each operation takes longer than the operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind.touches_nothing:
            return func(*args, **kwargs)
        written = kind.written(args, kwargs) if kind.changed else ()
        given = tensors_in((*args, *kwargs.values()))
        touched = [(*place, id(each) in written) for each in given if (place := self._place(each)) is not None]
        if kind.select is not None and args[0].numel() and (scale := _scale(args[0], touched[0][0])):
            touched[0] = touched[0][0], _flat(kind.select(self._address(args[0]), args), scale), touched[0][2]
        result = func(*args, **kwargs)
        made = tensors_in((result,))
        known = [memory for memory, _, _ in touched]
        places = [place for each in made if (place := self._place(each)) is not None]
        fresh = [(*place, True) for place in places if place[0] not in known]
        if not (fresh or written) and made:
            return result  # only views of what was given
        number = self._number(kind.name)
        for memory, elements, is_write in touched + fresh:
            self._access(memory, elements, number, is_write)
        return result

    def _access(
        self, memory: _Memory, elements: Elements, number: int, is_write: bool, since: Clock | None = None
    ) -> None:
        self.num_seen += 1
        actor = self._actor if since is None else LASTING  # unordered with its own actor's later work, too
        clock = self._clocks[self._actor] if since is None else since
        if not self.race and (other := memory.unordered(actor, clock, elements, is_write)):
            self.race = self._report(memory, elements, other, number, is_write)
        memory.add(self._actor, number, elements, is_write)

    def _number(self, operation: str) -> int:
        frame = sys._getframe(2)
        while frame.f_back is not None and "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        number = len(self._operations)
        self._operations.append((self._actor, self._where, operation, frame.f_code, frame.f_lineno))
        self._clocks[self._actor][self._actor] = number
        return number

    def _report(self, memory: _Memory, elements: Elements, other: int, number: int, is_write: bool) -> str:
        before, now = Access(*self._operations[other]), Access(*self._operations[number])
        first, second = "written" if memory.wrote(other) else "read", "written" if is_write else "read"
        storage = memory.ref()
        called = [name for tensor, name in self._names if tensor.untyped_storage() is storage]
        what = f"{called[0] if called else 'a tensor'} {tuple(memory.shape)}"
        if now.actor == before.actor == SCHEDULER:
            missing = "a read that still lasts must end before"
        elif now.actor == SCHEDULER:
            missing = f"the host has seen no event of {self._actors[before.actor]} that is behind it"
        elif before.actor == SCHEDULER:
            missing = f"{self._actors[now.actor]} waits for no event that the schedule stream has recorded behind it"
        else:
            missing = f"{self._actors[now.actor]} waits for no event of {self._actors[before.actor]} behind it"
        at = np.arange(memory.num_elements)[elements]
        return (
            f"race: {what}, {at.size} elements from {at.min()} on:\n    {first} by {before}\n    {second} by {now}\n"
            f"    in no order: {missing}"
        )

    # ---- memory ----

    def _place(self, tensor: Tensor) -> tuple[_Memory, Elements] | None:
        """Whose elements those of `tensor` are, and which; None if it has none."""
        num_elements = tensor.numel()
        if not num_elements:
            return None
        memory = self._memory(tensor)
        scale = _scale(tensor, memory)
        if not scale:
            return memory, slice(None)
        if tensor.is_contiguous():
            start = int(tensor.storage_offset())
            return memory, slice(start * scale, (start + num_elements) * scale)
        return memory, _flat(self._address(tensor), scale)

    def _memory(self, tensor: Tensor) -> _Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata  # of another storage only after this one was given back
        found = self._memories.get(key)
        if found is None:
            size, ref = tensor.element_size(), weakref.ref(storage, lambda _: self._given_back(key))
            found = _Memory(ref, size, -(-storage.nbytes() // size), tensor.shape, self._pools[self._actor])
            self._memories[key] = found
        return found

    def _given_back(self, key: int) -> None:
        """Nobody in Python holds the memory any more.

        Whoever gets it next comes behind what its pool has waited for, and behind what the host has seen to be over.
        """
        memory = self._memories.pop(key)
        known = self.clock(SCHEDULER)
        for actor, number in self._clocks[memory.pool].items():
            known[actor] = max(known.get(actor, 0), number)
        if self.race or not (last := memory.in_use(known, self._pools)):
            return

        frame = sys._getframe(2)
        used = Access(*self._operations[last])
        now = Access(self._actor, self._where, "its last reference", frame.f_code, frame.f_lineno)
        user, maker = self._actors[used.actor], self._actors[memory.pool]
        self.race = (
            f"race: a tensor {tuple(memory.shape)} is given back while it may still be used:\n"
            f"    used by {used}\n    dropped by {now}\n"
            f"    in no order: {maker} has made it and may overwrite it, because no launch of {user} has named it"
        )

    def _address(self, tensor: Tensor) -> Tensor:
        """Shaped like `tensor`: which element of its memory each of its elements is, in elements of its own size."""
        needed = self._memory(tensor).num_elements
        if len(self._addresses) < needed:
            self._addresses = torch.arange(needed)
        return self._addresses.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _scale(tensor: Tensor, memory: _Memory) -> int:
    """How many elements of its memory an element of `tensor` is; 0 if that is no whole number."""
    scale, rest = divmod(tensor.element_size(), memory.item_size)
    return 0 if rest else scale


def _flat(addresses: Tensor, scale: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The elements of a memory at `addresses`, each of which is `scale` of them."""
    found: np.ndarray[Any, np.dtype[np.int64]] = addresses.reshape(-1).numpy()
    return found if scale == 1 else (found[:, None] * scale + np.arange(scale)).reshape(-1)
