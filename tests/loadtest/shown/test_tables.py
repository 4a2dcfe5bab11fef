"""What the terminal says of a run and of a comparison."""

import io
from dataclasses import replace

from rich.console import Console

from loadtest.drive.own_load import OwnLoad
from loadtest.figures.intervals import Row
from loadtest.figures.record import Counting
from loadtest.measure import Measured
from loadtest.shown.tables import compare_table, show_run
from tests.loadtest.reports import measured, printed


def said(run: Measured) -> str:
    file = io.StringIO()
    show_run(Console(file=file, width=140), run, markdown=True)
    return file.getvalue()


def test_a_run_is_told_in_a_table_and_sentences() -> None:
    text = said(measured())
    cells = [line.replace(" ", "") for line in text.splitlines()]
    assert "|TTFT|200|200|200|-|-|200|38|" in cells and "|ITL|50|50|50|50|-|50|152|" in cells
    for words in (
        "40 requests in 4.5 s: 38 done, 1 failed, 1 unfinished",
        "goodput 8.44 requests/s, 95.0% of all (ttft:500)",
        "fairness 1.000",
        "exactness: 7 answers compared with the first pass, 1 were others",
        "tokens counted by token ids",
        "1 request failed (HTTP 503): <full>",
        "this client: 25% of a core, woke 1.0 ms late (p99), all 2 cores of this machine were used by 50%",
    ):
        assert words in text
    assert "warning" not in text


def test_chunks_are_called_so() -> None:
    text = said(measured(counting=Counting.CHUNKS))
    assert "ms (of chunks)" in text and "chunks/s" in text and "chunks, not tokens" in text


def test_a_refused_run_has_no_figures() -> None:
    text = said(measured(refusal="this client was the bottleneck"))
    assert "no figures: this client was the bottleneck" in text and "TTFT" not in text and "tokens/s" not in text
    assert "38 done, 1 failed, 1 unfinished" in text and "(HTTP 503): <full>" in text and "this client: 25%" in text


def test_a_late_client_and_a_stop_are_told() -> None:
    late = measured(own=OwnLoad(0.1, 40.0, 90.0, 0.1, 1.0, 2, 4.5))
    assert "warning: other processes kept this client from its core" in said(late)
    late.progress.why, late.progress.stopped_s = "Ctrl-C", 4.0
    assert "stopped after 4.5 s: Ctrl-C" in said(late)


def test_a_comparison_marks_what_differs() -> None:
    row = Row("ttft_p50_ms", "TTFT p50", False, 100.0, 150.0, 1.5, 1.4, 1.6)
    table = compare_table([row, replace(row, low=0.9, words="TPOT p50")], markdown=True)
    first, second = [line for line in printed(table).splitlines() if "p50" in line]
    assert "1.400 to 1.600 *" in first and "*" not in second
