"""Deployments side by side on one page."""

import re

from loadtest.shown.picture import picture_of, plots_of
from tests.loadtest.reports import measured


def test_each_deployment_has_its_line() -> None:
    page = picture_of([("--prefill 1 <x>", [measured(3.0), measured()]), ("--unified 1", [measured(2.0)])])
    assert page.count("<svg") == 3 and page.count("<polyline") == 6
    assert "A: baton serve --prefill 1 &lt;x&gt;" in page and "B: baton serve --unified 1" in page
    assert not re.search(r"<script|src=|href=|https?://", page)


def test_the_last_run_is_shown_and_a_refused_one_has_no_line() -> None:
    over, *_ = plots_of([("A", measured()), ("B", measured(refusal="busy"))])
    assert [line.name for line in over.lines] == ["A"]
    assert max(y for y in over.lines[0].ys if y == y) < 51


def test_nothing_measured_is_an_empty_page() -> None:
    assert "nothing to show" in picture_of([])
