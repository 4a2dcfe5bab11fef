"""A process of the simulated network that does nothing but count how often it is woken."""

from dataclasses import dataclass


@dataclass
class Process:
    name: str
    alive: bool = True
    num_wakes: int = 0

    def wake(self) -> None:
        self.num_wakes += 1
