"""Compares structs that Python and C share, when a library is loaded. C names each field's place (cpu_layers.c)."""

import ctypes
from typing import Final

from torch import Tensor

from protocol.errors import InternalError


class _Place(ctypes.Structure):
    """`place_of` of cpu_layers.c: a field as "struct.field", or a struct as "struct"."""

    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_int64), ("size", ctypes.c_int64))


Places = dict[str, tuple[int, int]]  # name -> (offset, size), in bytes
_NUM_PLACES: Final = "num_places"
_PLACES: Final = "places"


def places_in_c(library: ctypes.CDLL) -> Places:
    """Where the library has the fields of every struct that it shares."""
    count = ctypes.c_int64.in_dll(library, _NUM_PLACES).value
    entries = (_Place * count).in_dll(library, _PLACES)
    return {entry.name.decode(): (entry.offset, entry.size) for entry in entries}


def places_in_python(name: str, struct: type[ctypes.Structure]) -> Places:
    """Where this class has them. The struct is called `name` in C."""
    fields = ((field[0], getattr(struct, field[0])) for field in struct._fields_)
    places = {f"{name}.{field}": (at.offset, at.size) for field, at in fields}
    return {name: (0, ctypes.sizeof(struct)), **places}


def check_struct(library: ctypes.CDLL, name: str, struct: type[ctypes.Structure]) -> None:
    """InternalError if C and Python disagree on where a field lies, how large it is, or which fields there are."""
    theirs = {field: at for field, at in places_in_c(library).items() if field.partition(".")[0] == name}
    ours = places_in_python(name, struct)
    for part in sorted({*theirs, *ours}):
        if theirs.get(part) != ours.get(part):
            raise InternalError(
                f"{part} has (offset, bytes) {theirs.get(part)} in C and {ours.get(part)} in Python, expected the same"
            )


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's first number; None without a tensor."""
    return None if tensor is None else tensor.data_ptr()
