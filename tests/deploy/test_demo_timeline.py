import io

import pytest
from rich.console import Console

from deploy.demo import Moment, bar, draw, read_moments, spans, timeline_table

CHUNK = {
    "timeline": [
        {"name": "decode done", "at_ms": 400.0, "worker": "decode-0"},
        {"name": "received", "at_ms": 0.0, "worker": "gateway"},
        {"name": "decode done", "at_ms": 400.0, "worker": "decode-0"},
        {"name": "first token", "at_ms": 12.5, "worker": "prefill-0"},
        {"name": "reserved", "at_ms": 10.0, "worker": "decode-0"},
        {"name": "first decode", "at_ms": 20.0, "worker": "decode-0"},
        {"name": "done", "at_ms": 401.0, "worker": "gateway"},
    ]
}


def shown(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200).print(timeline_table(read_moments(CHUNK), 64, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_moments_are_read_in_order_of_time() -> None:
    assert read_moments(CHUNK) == (
        Moment("received", 0.0, "gateway"),
        Moment("reserved", 10.0, "decode-0"),
        Moment("first token", 12.5, "prefill-0"),
        Moment("first decode", 20.0, "decode-0"),
        Moment("decode done", 400.0, "decode-0"),
        Moment("done", 401.0, "gateway"),
    )
    assert read_moments({"choices": []}) == ()


def test_a_span_begins_at_the_moment_before_in_the_same_process() -> None:
    assert [span.start_ms for span in spans(read_moments(CHUNK))] == [0.0, 0.0, 10.0, 10.0, 20.0, 0.0]


def test_a_bar_spans_its_share() -> None:
    assert bar(0.0, 20.0, 40.0, width=8) == "━━━━    "
    assert bar(20.0, 40.0, 40.0, width=8) == "    ━━━━"
    assert bar(40.0, 40.0, 40.0, width=8) == "       ━"
    assert bar(0.0, 0.0, 0.0, width=4) == "━   "


def test_the_scale_ends_at_the_first_decode_step() -> None:
    drawn = draw(spans(read_moments(CHUNK)), num_tokens=64, width=8)
    assert drawn == ["━       ", "━━━━    ", "    ━   ", "    ━━━━", "… 62 more tokens, 380 ms", "…"]


def test_without_a_decode_step_the_scale_ends_with_the_last_moment() -> None:
    moments = (Moment("received", 0.0, "gateway"), Moment("first token", 4.0, "unified-0"))
    assert draw(spans(moments), num_tokens=1, width=4) == ["━   ", "━━━━"]


def test_the_table_names_who_did_what_when() -> None:
    rows = [line.split() for line in shown(100)]
    assert rows[0] == ["ms", "+ms", "where", "what"]
    assert rows[3][:5] == ["12.5", "2.5", "prefill-0", "first", "token"]
    assert rows[5] == ["400.0", "380.0", "decode-0", "decode", "done", "…", "62", "more", "tokens,", "380", "ms"]


@pytest.mark.parametrize("width, total", [(200, 120), (100, 100), (20, 0)])
def test_the_bar_gives_way_to_the_words(width: int, total: int) -> None:
    lines = shown(width)
    start = lines[1].index("━")
    assert len(lines[4]) == max(total, start + 10)
