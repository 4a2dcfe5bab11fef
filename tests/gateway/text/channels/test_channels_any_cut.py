from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.fold import Whole, fold
from gateway.words.events import CallBegin, CallDelta, CallEnd, Event
from tests.gateway.text.channels.reading import (
    FORMATS,
    Piece,
    answers,
    by_ids,
    channels,
    cut,
    deliver,
    joined,
    read,
    single,
    text_of,
)

every_format = pytest.mark.parametrize("name", FORMATS)
every_way = pytest.mark.parametrize("with_ids", [False, True], ids=["text", "ids"])
lengths = st.lists(st.integers(1, 9), max_size=60)


def told(name: str, with_ids: bool, opened: bool, pieces: list[Piece]) -> list[Event]:
    """All events of an answer."""
    reader = channels(FORMATS[name], with_ids=with_ids, opened=opened)
    return [event for events in deliver(reader, pieces) for event in events]


def whole_of(name: str, with_ids: bool, opened: bool, pieces: list[Piece]) -> Whole:
    return fold(told(name, with_ids, opened, pieces))


@every_format
@every_way
@given(data=st.data(), opened=st.booleans(), places=lengths)
def test_any_cut_gives_the_same_answer(name: str, with_ids: bool, data: Any, opened: bool, places: list[int]) -> None:
    pieces = data.draw(answers(name, with_ids))
    whole = whole_of(name, with_ids, opened, joined(pieces))
    assert whole == whole_of(name, with_ids, opened, single(pieces))
    assert whole == whole_of(name, with_ids, opened, cut(joined(pieces), places))


@every_format
@every_way
@given(data=st.data(), opened=st.booleans())
def test_calls_begin_and_end_in_order(name: str, with_ids: bool, data: Any, opened: bool) -> None:
    """Each call begins once, ends once, and nothing is told between but its arguments."""
    events = told(name, with_ids, opened, data.draw(answers(name, with_ids)))
    is_open, num_calls = False, 0
    for event in events:
        match event:
            case CallBegin(number):
                assert (is_open, number) == (False, num_calls)
                is_open = True
            case CallDelta(number):
                assert (is_open, number) == (True, num_calls)
            case CallEnd(number):
                assert (is_open, number) == (True, num_calls)
                is_open, num_calls = False, num_calls + 1
            case _:
                assert not is_open and event.text
    assert not is_open


@every_format
@every_way
@given(data=st.data())
def test_calls_of_no_known_tool_are_text_to_the_letter(name: str, with_ids: bool, data: Any) -> None:
    form = FORMATS[name]
    pieces = data.draw(answers(name, with_ids))
    text = text_of(form, pieces)
    assert form.reasoning is not None
    for tag in (form.reasoning.opening, form.reasoning.closing):
        text = text.replace(tag, "")
    pieces = by_ids(form, text) if with_ids else [text]
    assert read(form, pieces, tools={"other": {}}) == Whole(text, "", ())


@every_format
@given(text=st.text(st.characters(exclude_characters="<"), max_size=40), places=lengths)
def test_text_without_any_tag_is_text(name: str, text: str, places: list[int]) -> None:
    assert read(FORMATS[name], cut([text], places)) == Whole(text, "", ())
