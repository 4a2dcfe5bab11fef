import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.held import Ends, beginnings

tags = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


@given(tags, st.text("abc", max_size=12))
def test_what_may_become_a_tag_is_held(tags: list[str], text: str) -> None:
    ends = Ends(beginnings(tags), max(map(len, tags)))
    longest = max((size for tag in tags for size in range(len(tag)) if text.endswith(tag[:size])), default=0)
    assert ends.begin(text, 0) == len(text) - longest


@given(tags, st.text("ab", max_size=9), st.integers(0, 9))
def test_nothing_before_the_start_is_held(tags: list[str], text: str, start: int) -> None:
    start = min(start, len(text))
    assert Ends(beginnings(tags), 5).begin(text, start) == start + Ends(beginnings(tags), 5).begin(text[start:], 0)


def test_without_tags_nothing_is_held() -> None:
    assert re.search(beginnings([]), "anything") is None
