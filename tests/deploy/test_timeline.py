import io

import pytest
from rich.console import Console

from deploy.timeline import Moment, bar, read_moments, timeline_table

CHUNK = {
    "timeline": [
        {"name": "done", "at_ms": 40.0, "worker": "decode-0"},
        {"name": "received", "at_ms": 0.0, "worker": "gateway"},
        {"name": "done", "at_ms": 40.0, "worker": "decode-0"},
        {"name": "first token", "at_ms": 12.5, "worker": "prefill-0"},
    ]
}


def test_moments_are_read_in_order_of_time() -> None:
    assert read_moments(CHUNK) == (
        Moment("received", 0.0, "gateway"),
        Moment("first token", 12.5, "prefill-0"),
        Moment("done", 40.0, "decode-0"),
    )
    assert read_moments({"choices": []}) == ()


def test_a_bar_spans_its_share() -> None:
    assert bar(0.0, 20.0, 40.0, width=8) == "━━━━    "
    assert bar(20.0, 40.0, 40.0, width=8) == "    ━━━━"
    assert bar(40.0, 40.0, 40.0, width=8) == "       ━"
    assert bar(0.0, 0.0, 0.0, width=4) == "━   "


def test_the_table_names_who_did_what_when() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(timeline_table(read_moments(CHUNK), 100))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[0][:4] == ["ms", "+ms", "where", "what"]
    assert rows[2][:5] == ["12.5", "12.5", "prefill-0", "first", "token"]
    assert rows[3][:4] == ["40.0", "27.5", "decode-0", "done"]


@pytest.mark.parametrize("width, bar_chars", [(200, 40), (60, 24), (20, 10)])
def test_the_bar_gives_way_to_the_words(width: int, bar_chars: int) -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(timeline_table(read_moments(CHUNK), width))
    first_row = out.getvalue().splitlines()[1].rstrip()
    assert first_row.endswith("━")
    last_row = out.getvalue().splitlines()[-1].rstrip("\n")
    start = out.getvalue().splitlines()[1].index("━")
    assert len(last_row.rstrip()) - start == bar_chars
    assert len(last_row.rstrip()) <= max(width, start + 10)
