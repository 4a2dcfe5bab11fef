"""Who reads and writes which elements of which tensor, and whether anything orders them: data races, by observation.

Every torch operation is seen (a TorchDispatchMode); each belongs to an actor: a simulated stream, or the scheduler
thread with its schedule stream. Actors have vector clocks: what each knows to have happened. Waits, and events that the
host has seen done, pass knowledge on; a launch itself passes on what the host has seen, but no tensor work of its own.
What it does not know: schedules, tokens, and memory that is read without torch, unless told (`touch`, `touch_bytes`).
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

SCHEDULER = 0  # the actor of the scheduler thread and its schedule stream
PURGE_EVERY = 2000  # new memories; those that are gone are forgotten then

Clock = dict[int, int]  # of each actor: its newest operation that is known to have happened
Elements = slice | np.ndarray[Any, np.dtype[np.int64]]

aten = torch.ops.aten
_BY_DIM = {aten.index_select, aten.index_copy_, aten.index_add_, aten.index_fill_}
_GATHERED = {aten.gather, aten.scatter_, aten.scatter_add_}
_INDEXED = {aten.index, aten._unsafe_index, aten.index_put_, aten._index_put_impl_}


@dataclass(frozen=True)
class Access:
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


@dataclass(eq=False)
class _Memory:
    """What became of one storage: by actor and element, its newest write and its newest read."""

    ref: StorageWeakRef
    item_size: int
    num_elements: int
    shape: tuple[int, ...]
    writes: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=dict)
    reads: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=dict)
    newest: dict[tuple[bool, int], int] = field(default_factory=dict)  # by (is a write, actor)

    def add(self, actor: int, number: int, elements: Elements, is_write: bool) -> None:
        """One more access."""
        kept = self.writes if is_write else self.reads
        if actor not in kept:
            kept[actor] = np.zeros(self.num_elements, dtype=np.int64)
        kept[actor][elements] = number
        self.newest[is_write, actor] = number

    def unordered(self, actor: int, clock: Mapping[int, int], elements: Elements, is_write: bool) -> int:
        """An access by another actor that conflicts and that `clock` does not know; 0 if there is none."""
        for was_write, kept in ((True, self.writes), (False, self.reads)):
            if not (was_write or is_write):
                continue
            for other, numbers in kept.items():
                known = clock.get(other, 0)
                if other == actor or self.newest[was_write, other] <= known:
                    continue
                found = numbers[elements]
                if found.size and int(found.max()) > known:
                    return int(found.max())
        return 0


class RaceDetector(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Used as a context manager around everything that is to be seen. `race` is the first that was found, or ""."""

    def __init__(self) -> None:
        super().__init__()
        self.race = ""
        self.num_seen = 0  # accesses
        self._actors = ["the scheduler"]
        self._clocks: list[Clock] = [{}]
        self._actor = SCHEDULER
        self._where = self._actors[SCHEDULER]
        self._operations = [Access(SCHEDULER, "", "", None, 0)]  # by number; 0 is none
        self._memories: dict[int, _Memory] = {}
        self._names: list[tuple[Tensor, str]] = []  # kept alive: they are few and last as long as a worker
        self._addresses = torch.arange(0)

    # ---- order ----

    def actor(self, name: str) -> int:
        """A new one: a stream."""
        self._actors.append(f"{name} {len(self._actors)}")
        self._clocks.append({})
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
        """Reports call this memory so; accesses to its bytes can be told by address. It must last as long as this."""
        self._names.append((tensor, name))

    def touch(self, tensors: Iterable[Tensor], operation: str, *, is_write: bool = False) -> None:
        """An access that torch does not see: an opaque kernel, or the host reading."""
        number = self._number(operation)
        for tensor in tensors:
            if (elements := self._elements(tensor)) is not None:
                self._access(self._memory(tensor), number, elements, is_write)

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
                self._access(memory, self._number(operation), elements, is_write, since)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written, given = _arguments(func, args, kwargs)
        selected = self._selected(func, args)
        result = func(*args, **kwargs)
        made = list(_tensors((result,)))
        known = {each.untyped_storage()._cdata for each in given}
        fresh = [each for each in made if each.untyped_storage()._cdata not in known]
        if not written and made and not fresh:
            return result  # only views of what was given
        number = self._number(str(func.overloadpacket.__name__))
        for index, tensor in enumerate(given):
            elements = selected if index == 0 and selected is not None else self._elements(tensor)
            if elements is not None:
                self._access(self._memory(tensor), number, elements, id(tensor) in written)
        for tensor in fresh:
            if (elements := self._elements(tensor)) is not None:
                self._access(self._memory(tensor), number, elements, is_write=True)
        return result

    def _access(
        self, memory: _Memory, number: int, elements: Elements, is_write: bool, since: Clock | None = None
    ) -> None:
        self.num_seen += 1
        actor = self._actor if since is None else -1  # what lasts is unordered with its own actor's later work, too
        clock = self._clocks[self._actor] if since is None else since
        if not self.race and (other := memory.unordered(actor, clock, elements, is_write)):
            self.race = self._report(memory, elements, other, number, is_write)
        memory.add(self._actor, number, elements, is_write)

    def _number(self, operation: str) -> int:
        frame = sys._getframe(2)
        while frame.f_back is not None and "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        number = len(self._operations)
        self._operations.append(Access(self._actor, self._where, operation, frame.f_code, frame.f_lineno))
        self._clocks[self._actor][self._actor] = number
        return number

    def _report(self, memory: _Memory, elements: Elements, other: int, number: int, is_write: bool) -> str:
        before, now = self._operations[other], self._operations[number]
        written = any(other in numbers[elements] for numbers in memory.writes.values())
        first, second = "written" if written else "read", "written" if is_write else "read"
        called = [name for tensor, name in self._names if tensor.untyped_storage()._cdata == memory.ref.cdata]
        what = f"{called[0] if called else 'a tensor'} {memory.shape}"
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

    def _memory(self, tensor: Tensor) -> _Memory:
        storage = tensor.untyped_storage()
        found = self._memories.get(storage._cdata)
        if found is None:
            if len(self._memories) % PURGE_EVERY == PURGE_EVERY - 1:
                self._memories = {key: each for key, each in self._memories.items() if not each.ref.expired()}
            size = tensor.element_size()
            # the weak reference keeps the storage's identity from being given to another
            found = _Memory(StorageWeakRef(storage), size, -(-storage.nbytes() // size), tuple(tensor.shape))
            self._memories[storage._cdata] = found
        return found

    def _elements(self, tensor: Tensor) -> Elements | None:
        """Of its memory; None if there are none."""
        if not tensor.numel():
            return None
        if self._memory(tensor).item_size != tensor.element_size():
            return slice(None)
        if tensor.is_contiguous():
            start = int(tensor.storage_offset())
            return slice(start, start + tensor.numel())
        return self._flat(self._address(tensor))

    def _address(self, tensor: Tensor) -> Tensor:
        """Shaped like `tensor`: which element of its memory each of its elements is."""
        needed = self._memory(tensor).num_elements
        if len(self._addresses) < needed:
            self._addresses = torch.arange(needed)
        return self._addresses.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _flat(self, addresses: Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
        found: np.ndarray[Any, np.dtype[np.int64]] = addresses.reshape(-1).numpy()
        return found

    def _selected(self, func: Any, args: Sequence[Any]) -> Elements | None:
        """The elements of the first argument that its indices name; None for other operations: all of its elements."""
        packet = func.overloadpacket
        if packet in _INDEXED:
            addresses = self._address(args[0])
            return self._flat(addresses[tuple(slice(None) if each is None else each for each in args[1])])
        if packet in _BY_DIM:
            return self._flat(self._address(args[0]).index_select(args[1], args[2]))
        if packet in _GATHERED:
            return self._flat(self._address(args[0]).gather(args[1], args[2]))
        if packet is aten.embedding:
            return self._flat(self._address(args[0]).index_select(0, args[1].reshape(-1)))
        return None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[set[int], list[Tensor]]:
    """Ids of the tensors that the schema says are written, and all tensors; the first argument's come first."""
    written: set[int] = set()
    for index, name in _written_by(func):
        value = args[index] if index < len(args) else kwargs.get(name)
        written.update(id(each) for each in _tensors((value,)))
    return written, list(_tensors([*args, *kwargs.values()]))


@cache
def _written_by(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that the operation changes. Asking torch takes longer than the operation."""
    arguments = enumerate(func._schema.arguments)
    return tuple((at, each.name) for at, each in arguments if each.alias_info is not None and each.alias_info.is_write)
