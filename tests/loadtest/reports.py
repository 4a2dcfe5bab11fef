"""A run as it would have been measured, for what shows it."""

import io
from typing import Any

from rich.console import Console

from loadtest.drive.own_load import OwnLoad
from loadtest.drive.run import Progress
from loadtest.figures.figures import Window, figures_of
from loadtest.figures.record import Counting, Ending
from loadtest.figures.saturation import Look
from loadtest.measure import Exactness, Load, Measured
from loadtest.work.arrivals import Gamma
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from tests.loadtest.records import Schedule, record

LOAD = Load(
    work=RandomWork(Lengths("fixed", 8), Lengths("fixed", 5)), arrivals=Gamma(10.0), num_conversations=40,
    slos={"ttft": 500},
)  # fmt: skip
ABOUT = {"model": "m <b>", "when": "now", "machine": {"cpu": "one", "memory": None}}


def printed(thing: Any, width: int = 140) -> str:
    """The text that a terminal shows of `thing`."""
    said = io.StringIO()
    Console(file=said, width=width).print(thing)
    return said.getvalue()


def measured(scale: float = 1.0, counting: Counting = Counting.IDS, **fields: Any) -> Measured:
    """40 requests, of which one failed and one is unfinished. `scale` makes their times longer."""
    schedule = Schedule(0.2 * scale, 0.05 * scale)
    records = [record(number * 0.1, schedule, counting=counting, num_prompt=8) for number in range(38)]
    records.append(record(3.8, Schedule(num_events=0), ending=Ending.FAILED, kind="HTTP 503", error="<full>"))
    records.append(record(3.9, Schedule(num_events=1), ending=Ending.UNFINISHED))
    progress = Progress(num_sent=40, records=records, looks=[Look(0.0, 0, 0), Look(4.0, 40, 3)], now_s=4.5)
    window = Window(0.0, 4.5)
    known: dict[str, Any] = {
        "load": LOAD,
        "progress": progress, "records": records, "window": window,
        "refusal": None, "beside": None, "beside_records": [], "counted": {"x_total": 2.0},
        "figures": figures_of(records, window, LOAD.slos), "own": OwnLoad(0.1, 1.0, 5.0, 0.25, 0.5, 2, 4.5),
        "exactness": Exactness(7, 1),
    }  # fmt: skip
    return Measured(**{**known, **fields})
