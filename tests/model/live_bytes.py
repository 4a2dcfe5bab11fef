"""Counts the bytes of tensors that live: what a load takes, whatever the allocator, the page cache and time do."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """While it is entered, every operation's results are counted as long as any tensor shows their memory. Memory that
    came from elsewhere, such as a mapped file, does not count: what gives it is `uncounted`."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak = 0, 0
        self._tensors_of: dict[int, int] = {}  # by address of the memory
        self._counted: set[int] = set()  # ids of tensors that live

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: Mapping[str, Any] = kwargs or {}
        outside = {
            memory_of(leaf).data_ptr()
            for leaf in tree_leaves((args, given))
            if isinstance(leaf, Tensor) and memory_of(leaf).data_ptr() not in self._tensors_of
        }
        result = func(*args, **given)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf) not in self._counted and memory_of(leaf).data_ptr() not in outside:
                self._count(leaf)
        return result

    def _count(self, tensor: Tensor) -> None:
        memory = memory_of(tensor)
        at, size = memory.data_ptr(), memory.nbytes()
        if not size:
            return
        self._counted.add(id(tensor))
        if not self._tensors_of.get(at):
            self.now += size
            self.peak = max(self.peak, self.now)
        self._tensors_of[at] = self._tensors_of.get(at, 0) + 1
        weakref.finalize(tensor, self._drop, id(tensor), at, size)

    def _drop(self, tensor: int, at: int, size: int) -> None:
        self._counted.remove(tensor)
        self._tensors_of[at] -= 1
        if not self._tensors_of[at]:
            del self._tensors_of[at]
            self.now -= size


def uncounted(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same method, whose results are memory from elsewhere."""

    def called(*args: Any) -> Tensor:
        with _disable_current_modes():
            return method(*args)

    return called


def memory_of(tensor: Tensor) -> torch.UntypedStorage:
    """What a tensor and all views of it share."""
    return tensor.untyped_storage()
