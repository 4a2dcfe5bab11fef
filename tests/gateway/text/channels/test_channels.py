import json
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from gateway.text.channels.channels import MAX_CALLS, Channels
from gateway.text.channels.fold import Whole, WholeCall, fold
from gateway.text.channels.formats import HERMES
from gateway.text.channels.readers import MAX_HEADER, Format
from gateway.words.events import CallBegin, CallBroken, CallDelta, CallEnd, ReasoningDelta, TextDelta
from tests.gateway.text.channels.reading import (
    FORMATS,
    JSON,
    MINIMAX,
    TAGS,
    TOOLS,
    by_ids,
    channels,
    deliver,
    ids_of,
    joined,
    markers,
    read,
    single,
)

FIRST_CALL = {
    "json": '<tool_call>\n{"name": "f", "arguments": {"text": "a"}}\n</tool_call>',
    "tags": "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">a</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "pairs": "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
}
every_format = pytest.mark.parametrize("name", FORMATS)
with_and_without_ids = pytest.mark.parametrize("pieces_of", [lambda _form, text: [text], by_ids], ids=["text", "ids"])


def told(whole: Whole) -> tuple[str, str, list[tuple[str, str]]]:
    """A whole answer without the ids of its calls."""
    return whole.text, whole.reasoning, [(call.name, call.arguments) for call in whole.calls]


@every_format
@with_and_without_ids
def test_thoughts_text_and_calls(name: str, pieces_of: Any) -> None:
    form, call = FORMATS[name], FIRST_CALL[name]
    pieces = pieces_of(form, f"<think>\nHm.\n</think>\n\nI look.\n{call}\n{call}")
    assert told(read(form, pieces)) == ("I look.", "Hm.", [("f", '{"text": "a"}')] * 2)


@every_format
@with_and_without_ids
def test_several_calls_in_one_delivery(name: str, pieces_of: Any) -> None:
    """All events of a delivery come with it, the second call's, too."""
    form = FORMATS[name]
    pieces = pieces_of(form, FIRST_CALL[name] * 3)
    reader = channels(form, with_ids=any(isinstance(piece, int) for piece in pieces))
    events = [event for gained in deliver(reader, pieces)[:-1] for event in gained]
    kinds = [kind for kind, _ in groupby(events, key=type)]
    assert kinds == [CallBegin, CallDelta, CallEnd] * 3
    assert [event[0] for event in events] == sorted(event[0] for event in events)


@every_format
def test_arguments_are_told_while_they_are_written(name: str) -> None:
    form, call = FORMATS[name], FIRST_CALL[name]
    call = call.replace("a\n<", "aaaaaaaa\n<").replace("a<", "aaaaaaaa<").replace('"a"', '"aaaaaaaa"')
    *gained, _ = deliver(channels(form), single([call]))
    with_arguments = [at for at, events in enumerate(gained) if any(isinstance(event, CallDelta) for event in events)]
    assert with_arguments[0] <= call.index("aaaa") + 1 and len(with_arguments) >= 9


@every_format
def test_a_marker_that_is_one_token_counts_by_its_id_alone(name: str) -> None:
    form, call = FORMATS[name], FIRST_CALL[name]
    reader = channels(form, with_ids=True)
    text = f"<think>no thought</think> {call} end"
    assert deliver(reader, single([text]))[-1] == []
    ids = ids_of(form)
    assert read(form, [ids["<think>"], "a thought", ids["</think>"], text]) == Whole(text, "a thought", ())


@every_format
@pytest.mark.parametrize(
    "inside",
    [
        "just text",
        "",
        "\n",
        '{"name": "unknown", "arguments": {}}',
        '{"name": 7, "arguments": {}}',
        '{"arguments": {"a": 1}}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "name": "f", "arguments": {}}',
        '{"name": "f" "arguments": {}}',
        '["f", {}]',
        '{"name": "f"',
        "{}",
        "<function=unknown>\n</function>",
        "<function=>\n</function>",
        "<function=f",
        "<function>f</function>",
        "<parameter=text>\na\n</parameter>",
        '<invoke name="unknown">\n</invoke>',
        "<invoke name=f>\n</invoke>",
        '{"id": "' + "x" * MAX_HEADER + '", "name": "f", "arguments": {}}',
        "<function=" + "f" * MAX_HEADER + ">\n</function>",
    ],
)
@pytest.mark.parametrize("with_ids", [False, True])
def test_what_is_no_call_is_shown_as_text(name: str, inside: str, with_ids: bool) -> None:
    form = FORMATS[name]
    assert form.calls is not None
    for text in (
        f"Look: {form.calls.opening}{inside}{form.calls.closing} and more.",
        f"Look: {form.calls.opening}{inside}",
        f"{form.calls.opening} {form.calls.opening}{inside}{form.calls.closing}{form.calls.closing}\n",
    ):
        pieces = by_ids(form, text) if with_ids else [text]
        assert read(form, pieces) == read(form, single(pieces)) == Whole(text, "", ())


@every_format
def test_without_tools_all_is_text(name: str) -> None:
    text = f"Look: {FIRST_CALL[name]}\n"
    assert read(FORMATS[name], [text], tools={}) == Whole(text, "", ())


BROKEN_LATE = {
    "json": ('<tool_call>{"name": "f", "arguments": {"text": 1 ', "oops}}</tool_call> on", '{"text": 1 '),
    "tags": ("<tool_call><function=f><parameter=count>1</parameter>", "<parameter=count>2</parameter>", '{"count": 1'),
    "minimax": (
        '<minimax:tool_call><invoke name="f"><parameter name="count">1</parameter>',
        '<parameter name="count">2</parameter></invoke></minimax:tool_call> on',
        '{"count": 1',
    ),
    "pairs": (
        "<tool_call>f<arg_key>count</arg_key><arg_value>1</arg_value><arg_key>",
        "count</arg_key><arg_value>2</arg_value></tool_call> on",
        '{"count": 1',
    ),
}


@every_format
def test_a_call_that_breaks_within_its_arguments_was_none(name: str) -> None:
    """What was told of it stays told. All of it follows as text, and a call behind it is one."""
    form, (begin, rest, arguments) = FORMATS[name], BROKEN_LATE[name]
    reader = channels(form)
    gained = [*reader.text(f"Look: \n{begin}"), *reader.text(rest)]
    kinds = [type(event) for event in gained]
    assert kinds[1] is CallBegin and CallBroken in kinds and CallEnd not in kinds
    assert "".join(event.json for event in gained if isinstance(event, CallDelta)) == arguments
    assert told(read(form, [f"Look: \n{begin}{rest}"])) == (f"Look: \n{begin}{rest}", "", [])

    both = read(form, [begin + rest + FIRST_CALL[name]])
    assert len(both.calls) == 1 and told(both)[:2] == (begin + rest, "")


@every_format
@pytest.mark.parametrize("most", [1, 2])
def test_a_broken_call_takes_the_place_of_none(name: str, most: int) -> None:
    """As many whole calls follow it as a choice may have."""
    form, (begin, rest, _), call = FORMATS[name], BROKEN_LATE[name], FIRST_CALL[name]
    broken = begin + rest
    reader = Channels(
        markers(form), tools=TOOLS, is_reasoning_open=False, response_id="answer", choice=0, most_calls=most
    )
    whole = fold(event for events in deliver(reader, [broken * 3 + call * (most + 1)]) for event in events)
    assert told(whole) == (broken * 3, "", [("f", '{"text": "a"}')] * most)


@every_format
def test_a_broken_call_ends_no_thoughts(name: str) -> None:
    form, (begin, rest, _) = FORMATS[name], BROKEN_LATE[name]
    assert form.reasoning is not None
    opening, closing = form.reasoning.opening, form.reasoning.closing
    whole = read(form, [f"{opening}maybe {begin}{rest} no, wait{closing}Answer."])
    assert told(whole) == ("Answer.", f"maybe {begin}{rest} no, wait", [])


@every_format
def test_a_call_without_its_end_was_none_unless_it_is_cut(name: str) -> None:
    form, (begin, _, arguments) = FORMATS[name], BROKEN_LATE[name]
    assert told(read(form, [begin])) == (begin, "", [])
    assert told(read(form, [begin], is_cut=True)) == ("", "", [("f", arguments)])


@pytest.mark.parametrize("name", ["tags", "minimax", "pairs"])
@with_and_without_ids
def test_a_marker_ends_a_call_behind_its_last_parameter_but_the_end_of_the_answer_does_not(
    name: str, pieces_of: Any
) -> None:
    """A model that stops there may have had more to say. The marker says that it had not."""
    form, call = FORMATS[name], FIRST_CALL[name]
    assert form.calls is not None
    open_call = call.removesuffix(form.calls.closing).replace("</function>\n", "").replace("</invoke>\n", "")
    assert told(read(form, pieces_of(form, open_call))) == (open_call, "", [])
    for marker in (form.calls.closing, call):
        whole = told(read(form, pieces_of(form, open_call + marker)))
        assert whole == ("", "", [("f", '{"text": "a"}')] * (1 + (marker == call)))


@every_format
@with_and_without_ids
def test_text_that_follows_calls(name: str, pieces_of: Any) -> None:
    """White space beside calls is dropped, unless text follows it."""
    form, call = FORMATS[name], FIRST_CALL[name]
    for text, wanted in (
        (f"a\n\n{call}\n\nb", "a\n\nb"),
        (f"a {call} {call} ", "a"),
        (f" \n{call}", ""),
        (f"{call}b ", "b "),
        ("a \n", "a \n"),
        (" \n", " \n"),
    ):
        assert read(form, pieces_of(form, text)).text == wanted


@every_format
@pytest.mark.parametrize("most", [1, 2, MAX_CALLS])
def test_calls_beyond_so_many_are_left_out(name: str, most: int) -> None:
    form, call = FORMATS[name], FIRST_CALL[name]
    for answer, text in (
        (call * (most + 2), ""),
        (call * (most - 1) + f"a\n{call}\n{call}\nb\n{call}", "a\nb"),
        (call * most + call[: call.index("text") + 6], ""),
    ):
        reader = Channels(
            markers(form), tools=TOOLS, is_reasoning_open=False, response_id="answer", choice=0, most_calls=most
        )
        whole = fold(event for events in deliver(reader, single([answer])) for event in events)
        assert told(whole) == (text, "", [("f", '{"text": "a"}')] * most)


@every_format
def test_an_unfinished_call_behind_another_is_shown(name: str) -> None:
    form = FORMATS[name]
    assert form.calls is not None
    for rest in (form.calls.opening, f"\n{form.calls.opening}\n", f"{form.calls.opening}<func"):
        whole = read(form, [FIRST_CALL[name] + rest])
        assert (len(whole.calls), whole.text) == (1, rest)


def test_ids_of_calls_are_those_of_their_answer() -> None:
    whole = read(JSON, [FIRST_CALL["json"] * 2])
    assert whole == read(JSON, single([FIRST_CALL["json"] * 2]))
    ids = [call.id for call in whole.calls]
    assert len(set(ids)) == 2 and all(len(call_id) == 29 and call_id.startswith("call_") for call_id in ids)
    assert read(TAGS, [FIRST_CALL["tags"]]).calls[0].id == ids[0]


def test_ids_have_the_shape_of_their_format() -> None:
    form = Format(replace(HERMES, id_shape="functions.{name}:{index}"))
    assert [call.id for call in read(form, [FIRST_CALL["json"] * 2]).calls] == ["functions.f:0", "functions.f:1"]


def test_calls_of_two_choices_have_different_ids() -> None:
    def id_of(response_id: str, choice: int) -> str:
        reader = Channels(markers(JSON), tools=TOOLS, is_reasoning_open=False, response_id=response_id, choice=choice)
        begun = reader.text(FIRST_CALL["json"])[0]
        assert isinstance(begun, CallBegin)
        return begun.id

    assert len({id_of(response_id, choice) for response_id in ("a", "b", "a 1") for choice in (0, 1, 11)}) == 9
    assert id_of("a", 1) == id_of("a", 1)


def test_two_choices_share_no_state() -> None:
    first, second = channels(JSON), channels(JSON)
    first.text('<tool_call>{"name": "f", "arguments": {"text": "')
    assert second.text("hello") == [TextDelta("hello")]
    assert first.text("x") == [CallDelta(0, "x")]


class TestReasoning:
    def test_is_open_by_the_prompt(self) -> None:
        assert read(JSON, ["\nHm.\n</think>\n\nYes."], opened=True) == Whole("Yes.", "Hm.", ())
        assert read(JSON, ["<think>\nHm.</think>Yes."], opened=True) == Whole("Yes.", "Hm.", ())

    def test_that_is_cut_is_reasoning(self) -> None:
        assert read(JSON, ["<think>Hm. \n"]) == Whole("", "Hm. \n", ())

    @pytest.mark.parametrize("name", FORMATS)
    def test_ends_with_a_call(self, name: str) -> None:
        whole = read(FORMATS[name], [f"Hm.\n{FIRST_CALL[name]}\nDone."], opened=True)
        assert told(whole) == ("\nDone.", "Hm.", [("f", '{"text": "a"}')])

    @pytest.mark.parametrize("name", FORMATS)
    def test_does_not_end_with_what_is_no_call(self, name: str) -> None:
        form = FORMATS[name]
        assert form.calls is not None
        thought = f"I may write {form.calls.opening} and {form.calls.closing} here."
        for pieces in ([f"{thought}</think>Yes."], by_ids(form, f"{thought}</think>Yes.")):
            assert read(form, pieces, opened=True) == Whole("Yes.", thought, ())

    def test_only_line_breaks_around_it_are_dropped(self) -> None:
        assert read(JSON, ["<think>\n\n  Hm. \n\n</think>\n\n  Yes. \n"]) == Whole("  Yes. \n", "  Hm. ", ())

    @pytest.mark.parametrize("name", FORMATS)
    @with_and_without_ids
    def test_markers_in_the_middle_of_text_are_text(self, name: str, pieces_of: Any) -> None:
        form, call = FORMATS[name], FIRST_CALL[name]
        quoted = "Write <think> and\n</think> <think>."
        for answer, text, thoughts in (
            (quoted, quoted, ""),
            (f"<think>a</think>{quoted}", quoted, "a"),
            (f"<think>a</think> <think>{quoted}", f" <think>{quoted}", "a"),
            (f"{call}\nb{quoted}", f"\nb{quoted}", ""),
        ):
            whole = read(form, pieces_of(form, answer))
            assert (whole.text, whole.reasoning) == (text, thoughts)

    @pytest.mark.parametrize("name", FORMATS)
    @with_and_without_ids
    def test_begins_at_the_start_and_directly_behind_a_call(self, name: str, pieces_of: Any) -> None:
        form, call = FORMATS[name], FIRST_CALL[name]
        assert read(form, pieces_of(form, " \n<think>a</think>b")) == Whole("b", "a", ())
        whole = read(form, pieces_of(form, f"<think>a</think>b{call}\n<think>\nc</think>\nd{call}<think>e"))
        assert told(whole) == ("bd", "ace", [("f", '{"text": "a"}')] * 2)

    def test_a_format_without_it_shows_its_tags(self) -> None:
        form = Format(JSON.calls, None)
        text = "<think>a</think>b"
        assert read(form, [text]) == Whole(text, "", ())

    def test_says_whether_thoughts_go_on(self) -> None:
        reader = channels(JSON)
        assert not reader.is_reasoning
        reader.text("<think>Hm.")
        assert reader.is_reasoning
        reader.text("</thi")
        assert reader.is_reasoning
        reader.text("nk>")
        assert not reader.is_reasoning


class TestEvents:
    def test_neighbours_of_one_kind_are_one(self) -> None:
        assert channels(JSON).text("a <b> <tool_call>x") == [TextDelta("a <b> <tool_call>x")]
        events = channels(TAGS).text(
            "<tool_call><function=f><parameter=text>a</parameter><parameter=count>1</parameter>"
        )
        assert [type(event) for event in events] == [CallBegin, CallDelta]

    def test_are_none_for_nothing(self) -> None:
        reader = channels(JSON)
        assert [reader.text(""), reader.text("<tool_"), reader.text(""), reader.text("call>"), reader.end()] == [
            [],
            [],
            [],
            [],
            [TextDelta("<tool_call>")],
        ]

    def test_of_what_is_held_at_the_end(self) -> None:
        reader = channels(MINIMAX)
        assert reader.text("a \n<minimax:tool") == [TextDelta("a")]
        assert reader.end() == [TextDelta(" \n<minimax:tool")]

    def test_of_an_answer_that_ends_within_a_call(self) -> None:
        reader = channels(TAGS)
        text = "<tool_call><function=f><parameter=text>a</para"
        reader.text(text)
        assert reader.end(is_cut=True) == [CallDelta(0, "</para"), CallEnd(0)]
        reader = channels(TAGS)
        reader.text(text)
        assert reader.end() == [CallBroken(0), TextDelta(text)]

    def test_thoughts_and_text_of_one_delivery(self) -> None:
        assert channels(JSON).text("<think>a</think>b") == [ReasoningDelta("a"), TextDelta("b")]


def test_markers_within_strings_are_text() -> None:
    text = "<think></tool_call><tool_call>"
    for form, answer in (
        (JSON, f'<tool_call>{{"name": "f", "arguments": {{"text": "{text}"}}}}</tool_call>'),
        (TAGS, f"<tool_call><function=f><parameter=text>{text}</parameter></function></tool_call>"),
    ):
        for pieces in ([answer], by_ids(form, answer)):
            whole = read(form, pieces)
            assert json.loads(whole.calls[0].arguments) == {"text": text} and whole.text == ""
            assert joined(pieces) == pieces


def test_a_call_with_an_end_of_its_own_is_whole_without_the_closing_marker() -> None:
    for name, form in FORMATS.items():
        assert form.calls is not None
        if name == "pairs":  # the marker ends the call
            continue
        answer = FIRST_CALL[name].removesuffix(form.calls.closing)
        assert told(read(form, [answer])) == ("", "", [("f", '{"text": "a"}')])
        assert told(read(form, [answer + FIRST_CALL[name]])) == ("", "", [("f", '{"text": "a"}')] * 2)


def test_whole_call_has_all_it_was() -> None:
    (call,) = read(JSON, [FIRST_CALL["json"]]).calls
    assert call == WholeCall(call.id, "f", '{"text": "a"}')
