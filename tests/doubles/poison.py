"""Nonsense in tensors that a segment must not read yet."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def poisoned(tensors: Iterator[Tensor] | Sequence[Tensor]) -> Iterator[None]:
    """What `tensors` hold is replaced by nonsense for a while. Integers stay small enough to index nothing outside:
    a wrong token, not a crash, is what a device would give."""
    with _disable_current_modes():  # not to be observed: nobody on a device does this
        kept = [(tensor, tensor.clone()) for tensor in {id(each): each for each in tensors}.values()]
        for tensor, _ in kept:
            tensor.zero_()
    try:
        yield
    finally:
        with _disable_current_modes():
            for tensor, values in kept:
                tensor.copy_(values)
