"""What each part of the measurement is given."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest.bench_model import bench_model
from runtime.clock import Clock


@dataclass(frozen=True)
class Setting:
    """`rounds` of each side, in alternation. `quick`: small sizes, which show that it works, no more."""

    clock: Clock
    console: Console
    rounds: int = 3
    quick: bool = False
    markdown: bool = False

    @property
    def model(self) -> Path:
        """The folder of the model that is measured; one layer of it if `quick`."""
        return bench_model(num_hidden_layers=1) if self.quick else bench_model()
