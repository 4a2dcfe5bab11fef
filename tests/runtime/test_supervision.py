"""News of units: as lines, and in words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages_gateway import Role
from runtime.supervision import MAX_LINE_BYTES, STATES, UnitNews, describe_unit

WAITS = UnitNews("decode-0", Role.DECODE, "backing off", 100.0, 104.0, 4)
TIMES = st.floats(0, 1e9)
NEWS = st.builds(
    UnitNews,
    st.text(max_size=200),
    st.sampled_from(Role),
    st.sampled_from(STATES),
    TIMES,
    TIMES,
    st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
)


@given(NEWS)
def test_a_line_holds_all_of_it_and_fits_a_pipe(news: UnitNews) -> None:
    line = news.to_line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES
    assert UnitNews.from_line(line[:-1]) == news


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b"{}", b"\xff", WAITS.to_line()[:-3], b'{"state": "odd"}'])
def test_another_line_is_no_news(line: bytes) -> None:
    assert UnitNews.from_line(line) is None
    assert UnitNews.from_line(WAITS.to_line().replace(b"backing off", b"odd")) is None


@pytest.mark.parametrize(
    ("news", "now", "says"),
    [
        (WAITS, 100.0, "it is started again in 4 s, restart 4 in a row"),
        (WAITS, 103.46, "it is started again in 0.5 s, restart 4 in a row"),
        (replace(WAITS, max_restarts=5), 101.0, "it is started again in 3 s, restart 4 of 5 in a row"),
        (WAITS, 104.0, "it is started again at once"),
        (WAITS, 105.0, "it is started again at once"),
        (replace(WAITS, state="starting"), 107.4, "it has been starting for 7 s"),
        (replace(WAITS, state="given up", max_restarts=0), 200.0, "it is not started again (--max-restarts 0)"),
        (replace(WAITS, state="given up", max_restarts=1), 200.0, "it is given up after 1 restart in a row"),
        (replace(WAITS, state="given up", max_restarts=3), 200.0, "it is given up after 3 restarts in a row"),
        (replace(WAITS, state="left"), 200.0, "it has left"),
        (replace(WAITS, state="running"), 200.0, "it runs"),
    ],
)
def test_what_is_said(news: UnitNews, now: float, says: str) -> None:
    assert describe_unit(news, "it", now) == says
