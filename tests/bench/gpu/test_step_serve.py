"""The rows of the step `serve`."""

from dataclasses import replace
from pathlib import Path

from bench.gpu.sheet import Folder, StepSheet
from bench.gpu.step_serve import add_row, ways_of_kv
from bench.records import Row
from loadtest.figures.figures import Window, figures_of
from tests.doubles.clock import VirtualClock
from tests.loadtest.records import answered
from tests.loadtest.reports import measured


def test_an_itl_of_zero_is_absent_because_most_tokens_came_with_the_one_before(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    sheet = StepSheet(folder, "serve", VirtualClock(), 10.0, judged=False)
    for gaps in ((0.0, 0.0, 0.006), (0.002, 0.004, 0.006)):
        found = replace(measured(), records=[], figures=figures_of([answered(0.01, gaps)], Window(0.0, 1.0), {}))
        add_row(sheet, "Clients over HTTP", {"clients": 1}, found, "")
    rows = [each.cells for each in folder.records() if isinstance(each, Row)]
    assert [cells["ITL p50"] for cells in rows] == [None, 4.0] and "long prompts' TTFT p50" not in rows[0]


def test_the_page_tells_how_kv_came() -> None:
    workers = [{"id": "decode-0", "transfer": {"prefill-0": "cuda_ipc"}}, {"id": "prefill-0", "transfer": {}}]
    assert ways_of_kv(workers) == ["KV came to decode-0 from prefill-0 by cuda_ipc"]
