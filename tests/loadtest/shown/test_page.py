"""The page of a report is one file, with everything in it and nothing executed."""

import re

from loadtest.shown.page import page_of, plots_of
from tests.loadtest.reports import ABOUT, measured


def test_a_page_has_figures_plots_and_environment_and_loads_nothing() -> None:
    page = page_of([measured(), measured(2.0)], ABOUT)
    assert page.count("<svg") == 16 and "Run 2 of 2" in page
    assert "<td>TTFT</td><td>200</td>" in page and "<td>TTFT</td><td>400</td>" in page
    assert "<td>x_total</td><td>2</td>" in page
    assert "machine cpu</td><td>one" in page and "memory" not in page
    assert not re.search(r"<script|src=|href=|https?://|@import|url\(", page)


def test_what_others_said_is_escaped() -> None:
    page = page_of([measured()], ABOUT)
    assert "m &lt;b&gt;" in page and "&lt;full&gt;" in page and "<full>" not in page


def test_a_refused_or_stopped_run_says_so() -> None:
    refused = page_of([measured(refusal="busy")], ABOUT)
    assert "No figures: busy." in refused and "<svg" not in refused
    run = measured()
    run.progress.why = "Ctrl-C"
    assert "Stopped after 4.5 s: Ctrl-C." in page_of([run], ABOUT)


def test_plots_show_the_run() -> None:
    plots = {plot.title.partition(":")[0]: plot for plot in plots_of(measured())}
    assert [round(x) for x in plots["TTFT"].lines[0].xs] == [200] * 38
    assert plots["Requests in flight"].lines[0].ys == [0, 3]
    assert len(plots) == 8
