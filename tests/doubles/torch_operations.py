"""What a torch operation reads and writes, for the race detector."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_BY_DIM = {aten.index_select, aten.index_copy_, aten.index_add_, aten.index_fill_}
_GATHERED = {aten.gather, aten.scatter_, aten.scatter_add_}
_INDEXED = {aten.index, aten._unsafe_index, aten.index_put_, aten._index_put_impl_}


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Those among `values`, and in lists and tuples of them."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


@dataclass(frozen=True)
class Kind:
    """What is known of an operation without its arguments. Asking torch takes longer than the operation itself.

    `select`: of the addresses of the first argument's elements, given all arguments, those that its indices name.
    """

    name: str
    changed: tuple[tuple[int, str], ...]  # position and name of each argument that it changes
    select: Callable[[Tensor, Sequence[Any]], Tensor] | None
    touches_nothing: bool

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
        """Ids of the tensors that it changes."""
        values = (args[at] if at < len(args) else kwargs.get(name) for at, name in self.changed)
        return {id(each) for each in tensors_in(values)}


@cache
def kind_of(func: Any) -> Kind:
    """That of an operation, as a dispatch mode gets it."""
    packet = func.overloadpacket
    changed = tuple(
        (at, each.name)
        for at, each in enumerate(func._schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    )
    if packet is aten.lift_fresh:
        changed = ((0, "self"),)
    return Kind(packet.__name__, changed, _selection(packet), packet is aten.detach_)


def _selection(packet: Any) -> Callable[[Tensor, Sequence[Any]], Tensor] | None:
    if packet in _INDEXED:
        return lambda at, args: at[tuple(slice(None) if each is None else each for each in args[1])]
    if packet in _BY_DIM:
        return lambda at, args: at.index_select(args[1], args[2])
    if packet in _GATHERED:
        return lambda at, args: at.gather(args[1], args[2])
    if packet is aten.embedding:
        return lambda at, args: at.index_select(0, args[1].reshape(-1))
    return None
