"""The mixing step of splitmix64 (Steele, Lea, Flood 2014), on int64 tensors.

int64 tensors wrap on overflow on every device, so the numbers are the same everywhere.
"""

from typing import Final

from torch import Tensor

_WRAP: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


def signed(value: int) -> int:
    """The int64 with the low 64 bits of `value`."""
    value &= _WRAP
    return value - (1 << 64) if value >> 63 else value


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift by 1 to 63 bits (int64's own shift keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """One step on each element."""
    x = x + signed(_GAMMA)
    x = (x ^ shift_right(x, 30)) * signed(_FIRST)
    x = (x ^ shift_right(x, 27)) * signed(_SECOND)
    return x ^ shift_right(x, 31)
