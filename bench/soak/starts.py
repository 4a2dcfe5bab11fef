"""How often a launcher has started something again, by what it says. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_AGAIN = " is started again "
_UNCOUNTED = " so this does not count;"


def endings(lines: Iterable[str]) -> list[str]:
    """The lines in which the launcher says that a process has ended. More than faults: something else ended one."""
    return [line for line in lines if " error baton " in line]


@dataclass(frozen=True)
class Starts:
    """`counted`: starts after a failure. `after_pauses`: those of what had ended because it was paused."""

    counted: int
    after_pauses: int

    @staticmethod
    def told_in(ends: Sequence[str]) -> "Starts":
        """From the launcher's lines about processes that have ended."""
        again = [line for line in ends if _AGAIN in line]
        after_pauses = sum(_UNCOUNTED in line for line in again)
        return Starts(len(again) - after_pauses, after_pauses)
