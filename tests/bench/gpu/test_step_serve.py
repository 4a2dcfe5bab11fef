"""The rows of the step `serve`."""

from dataclasses import replace
from pathlib import Path

from bench.gpu.step_serve import add_row, ways_of_kv
from loadtest.figures.figures import Window, figures_of
from tests.bench.gpu.sheets import rows_in, sheet_in
from tests.loadtest.records import answered
from tests.loadtest.reports import measured


def test_an_itl_of_zero_is_absent_because_most_tokens_came_with_the_one_before(tmp_path: Path) -> None:
    sheet = sheet_in(tmp_path, "serve")
    for gaps in ((0.0, 0.0, 0.006), (0.002, 0.004, 0.006)):
        of_bursts = replace(measured(), records=[], figures=figures_of([answered(0.01, gaps)], Window(0.0, 1.0), {}))
        add_row(sheet, "Clients over HTTP", {"clients": 1}, of_bursts, "")
    rows = [row.cells for row in rows_in(sheet)]
    assert [cells["ITL p50"] for cells in rows] == [None, 4.0] and "long prompts' TTFT p50" not in rows[0]


def test_the_page_tells_how_kv_came() -> None:
    workers = [{"id": "decode-0", "transfer": {"prefill-0": "cuda_ipc"}}, {"id": "prefill-0", "transfer": {}}]
    assert ways_of_kv(workers) == ["KV came to decode-0 from prefill-0 by cuda_ipc"]
