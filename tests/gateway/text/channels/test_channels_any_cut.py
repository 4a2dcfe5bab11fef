import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.text.channels.fold import Whole, fold
from gateway.words.events import CallBegin, CallBroken, CallDelta, CallEnd, Event, ReasoningDelta, TextDelta
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
BEGUN = {  # the beginning of a call, with some of its arguments
    "json": '<tool_call>\n{"name": "f", "arguments": {"count": 12, ',
    "tags": "<tool_call>\n<function=f>\n<parameter=count>\n7\n</parameter>\n",
    "minimax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="count">7</parameter>\n',
    "pairs": "<tool_call>f\n<arg_key>count</arg_key>\n<arg_value>7</arg_value>\n<arg_key>count</arg_key>",
}
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
            case CallEnd(number) | CallBroken(number):
                assert (is_open, number) == (True, num_calls)
                is_open, num_calls = False, num_calls + 1
            case TextDelta(text) | ReasoningDelta(text):
                assert not is_open and text
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
@every_way
@given(data=st.data(), opened=st.booleans(), places=lengths)
def test_each_call_of_an_answer_that_is_not_cut_has_an_object(
    name: str, with_ids: bool, data: Any, opened: bool, places: list[int]
) -> None:
    pieces = data.draw(answers(name, with_ids))
    whole = whole_of(name, with_ids, opened, cut(joined(pieces), places))
    assert all(isinstance(json.loads(call.arguments), dict) for call in whole.calls)


@every_format
@every_way
@given(data=st.data())
def test_an_answer_whose_calls_are_all_broken_is_text_to_the_letter(name: str, with_ids: bool, data: Any) -> None:
    """So nothing that the model has said is lost. The first part is a call, without an end."""
    form, begin = FORMATS[name], BEGUN[name]
    pieces = [*by_ids(form, begin), *data.draw(answers(name, True))] if with_ids else [begin]
    pieces = pieces if with_ids else [*pieces, *data.draw(answers(name, False))]
    assert form.reasoning is not None
    text = text_of(form, pieces)
    for tag in (form.reasoning.opening, form.reasoning.closing):
        text = text.replace(tag, "")
    whole = read(form, by_ids(form, text) if with_ids else [text])
    assume(not whole.calls)
    assert whole == Whole(text, "", ())


@every_format
@given(text=st.text(st.characters(exclude_characters="<"), max_size=40), places=lengths)
def test_text_without_any_tag_is_text(name: str, text: str, places: list[int]) -> None:
    assert read(FORMATS[name], cut([text], places)) == Whole(text, "", ())
