"""What each part of the measurement is given."""

from dataclasses import dataclass

from rich.console import Console

from runtime.clock import Clock


@dataclass(frozen=True)
class Setting:
    """`rounds` of each side, in alternation. `quick`: small sizes, which show that it works, no more."""

    clock: Clock
    console: Console
    rounds: int = 3
    quick: bool = False
    markdown: bool = False
