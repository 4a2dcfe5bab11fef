import io

from rich.console import Console

from deploy.timeline import Moment, bar, read_moments, timeline_table

CHUNK = {
    "timeline": [
        {"name": "done", "at_ms": 40.0, "worker": "decode-0"},
        {"name": "received", "at_ms": 0.0, "worker": "gateway"},
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
    Console(file=out, width=100).print(timeline_table(read_moments(CHUNK)))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[0][:4] == ["ms", "+ms", "where", "what"]
    assert rows[2][:5] == ["12.5", "12.5", "prefill-0", "first", "token"]
    assert rows[3][:4] == ["40.0", "27.5", "decode-0", "done"]
