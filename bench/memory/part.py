"""What each part of the measurement is given."""

from dataclasses import dataclass
from pathlib import Path

from bench.sheet import Sheet
from loadtest.bench_model import bench_model
from runtime.clock import Clock


@dataclass(frozen=True)
class Setting:
    """`rounds` of each side, in turn. `quick`: small sizes, which show that it works, no more."""

    clock: Clock
    sheet: Sheet
    rounds: int = 3
    quick: bool = False

    @property
    def model(self) -> Path:
        """The folder of the model that is measured; one layer of it if `quick`."""
        return bench_model(num_hidden_layers=1) if self.quick else bench_model()
