"""The rows of the step `serve`."""

from pathlib import Path

from bench.gpu.sheet import Folder, StepSheet
from bench.gpu.step_serve import SIZES, add_row, ways_of_kv
from bench.records import Row
from loadtest.report import figures_of
from tests.doubles.clock import VirtualClock
from tests.loadtest.records import answered


def test_an_itl_of_zero_is_absent_because_most_tokens_came_with_the_one_before(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    sheet = StepSheet(folder, "serve", VirtualClock(), 10.0, judged=False)
    for gaps in ((0.0, 0.0, 0.006), (0.002, 0.004, 0.006)):
        found = figures_of([answered(0.01, gaps)], 1.0)
        add_row(sheet, "Clients over HTTP", {"clients": 1}, SIZES["cpu"].load, found, "")
    rows = [each.cells for each in folder.records() if isinstance(each, Row)]
    assert [cells["ITL p50"] for cells in rows] == [None, 4.0]


def test_the_page_tells_how_kv_came() -> None:
    workers = [{"id": "decode-0", "transfer": {"prefill-0": "cuda_ipc"}}, {"id": "prefill-0", "transfer": {}}]
    assert ways_of_kv(workers) == ["KV came to decode-0 from prefill-0 by cuda_ipc"]
