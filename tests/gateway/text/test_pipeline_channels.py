"""The pipeline of a choice whose answer has channels, with tokens of a real tokenizer."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.channels.channels import Channels
from gateway.text.channels.fold import Whole, fold
from gateway.text.channels.markers import Markers
from gateway.text.detokenizer import WindowDetokenizer
from gateway.text.pipeline import Pipeline
from gateway.text.stop_strings import StopSet
from gateway.text.tokenizer import SpecialTokens, TextTokenizer
from gateway.words.events import CallBegin, CallBroken, Finish, Reason, Step, TextDelta
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import END, EOS, marked_tokenizer, piece_tokenizer
from tests.gateway.text.channels.reading import FORMATS, TOOLS, Piece, answers, by_ids, read

every_format = pytest.mark.parametrize("name", FORMATS)
CALL = '<tool_call>{"name": "f", "arguments": {"text": "a stop b"}}</tool_call>'
CUT_CALL = CALL[: CALL.index("op b")]
DELIVERIES = st.lists(st.integers(1, 7), max_size=40)


@cache
def tokenizer_of(name: str, kind: str) -> TextTokenizer:
    """`kind`: how the markers are in the vocabulary."""
    markers = () if kind == "text" else FORMATS[name].markers
    return TextTokenizer(marked_tokenizer(markers, special=kind == "special"), SpecialTokens({}, None, None))


def pipeline(
    name: str,
    kind: str = "text",
    *stops: str,
    opened: bool = False,
    keep_special: bool = False,
    has_tools: bool = True,
) -> Pipeline:
    tokenizer = tokenizer_of(name, kind)
    markers, tools = Markers(FORMATS[name], tokenizer.added_id), TOOLS if has_tools else {}
    channels = Channels(markers, tools=tools, is_reasoning_open=opened, response_id="answer", choice=0)
    return Pipeline(tokenizer.detokenizer((), not keep_special), StopSet(stops), 0, channels=channels)


def ids_of(name: str, kind: str, pieces: Sequence[Piece]) -> list[int]:
    """The tokens of an answer: one for each marker with an id, and one for each byte of the rest."""
    tokenizer, by_place = tokenizer_of(name, kind), FORMATS[name].markers
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, str):
            ids += piece.encode()
        else:
            marker_id = tokenizer.added_id(by_place[piece - 100])
            assert marker_id is not None
            ids.append(marker_id)
    return ids


def steps_of(
    choice: Pipeline, ids: Sequence[int], lengths: Sequence[int], finish: FinishReason, *, scored: bool = False
) -> list[Step]:
    """The Steps of a choice whose tokens come in deliveries of these lengths, the rest at once."""
    places = [0]
    for length in lengths:
        places.append(min(places[-1] + length, len(ids)))
    steps: list[Step] = []
    for start, end in pairwise(dict.fromkeys((*places, len(ids)))):
        if choice.finish is None:
            tokens = tuple(ids[start:end])
            scores = [TokenLogprob(-1.0, 1, ()) for _ in tokens] if scored else []
            steps.append(choice.feed(tokens, finish if end == len(ids) else None, scores))
    return steps if choice.finish is not None else [*steps, choice.feed((), finish)]


def whole_of(steps: Sequence[Step]) -> Whole:
    return fold(event for step in steps for event in step.events)


@every_format
@pytest.mark.parametrize("kind", ["text", "added", "special"])
@given(
    data=st.data(),
    opened=st.booleans(),
    keep_special=st.booleans(),
    lengths=DELIVERIES,
    stops=st.lists(st.sampled_from(["a", "x\n", "\n\n", "}}", "<|end|>", "é<"]), max_size=2),
    finish=st.sampled_from([FinishReason.LENGTH, FinishReason.STOP]),
)
def test_deliveries_do_not_change_an_answer(
    name: str,
    kind: str,
    data: Any,
    opened: bool,
    keep_special: bool,
    lengths: list[int],
    stops: list[str],
    finish: FinishReason,
) -> None:
    pieces = data.draw(answers(name, kind != "text"))
    ids = ids_of(name, kind, pieces)
    for place in data.draw(st.lists(st.integers(0, len(ids)), max_size=2)):
        ids[place:place] = data.draw(st.sampled_from([[END], [0xC3], [0xF0, 0x9F]]))  # may break a character

    def choice() -> Pipeline:
        return pipeline(name, kind, *stops, opened=opened, keep_special=keep_special)

    once, cut, scored = choice(), choice(), choice()
    whole = steps_of(once, ids, (), finish)
    parts = steps_of(cut, ids, lengths, finish)
    told = steps_of(scored, ids, lengths, finish, scored=True)
    assert whole_of(whole) == whole_of(parts) == whole_of(told)
    assert once.finish == cut.finish == scored.finish
    assert (once.num_tokens, once.num_reasoning) == (cut.num_tokens, cut.num_reasoning)
    assert once.num_reasoning <= once.num_tokens

    shown = [token.token_id for step in told for token in step.shown]
    assert shown == ids[: len(shown)] and (scored.is_cut or len(shown) == len(ids)), "each token is told once, in order"
    kinds = {type(event) for step in parts for event in step.events}
    expected = Reason.CALLS if CallBegin in kinds and CallBroken not in kinds else Reason.STOP
    is_stopped = once.is_cut or finish is FinishReason.STOP
    assert once.finish is not None and once.finish.reason is (expected if is_stopped else Reason.LENGTH)


@every_format
@pytest.mark.parametrize("kind", ["text", "added", "special"])
@given(data=st.data(), opened=st.booleans(), lengths=DELIVERIES, is_cut=st.booleans())
def test_the_pipeline_adds_nothing_to_what_channels_tell(
    name: str, kind: str, data: Any, opened: bool, lengths: list[int], is_cut: bool
) -> None:
    pieces = data.draw(answers(name, kind != "text"))
    ids = ids_of(name, kind, pieces) if is_cut else [*ids_of(name, kind, pieces), EOS]
    finish = FinishReason.LENGTH if is_cut else FinishReason.STOP
    steps = steps_of(pipeline(name, kind, opened=opened), ids, lengths, finish)
    expected = (
        read(FORMATS[name], pieces, opened=opened, is_cut=is_cut)
        if any(isinstance(p, int) for p in pieces) or kind == "text"
        else None
    )
    assert expected is None or whole_of(steps) == expected


PARTS: dict[str, list[int]] = {part: [*part.encode()] for part in ("a", "b", " ", "\n", "<", "<tool_")} | {"": [END]}


@given(
    st.lists(st.sampled_from(sorted(PARTS)), max_size=14),
    st.lists(st.text("ab< \n", max_size=2).map(lambda text: f"{text}<|end|>") | st.just("a b"), min_size=1, max_size=2),
    DELIVERIES,
)
def test_a_choice_ends_where_it_would_if_special_tokens_were_shown(
    parts: list[str], stops: list[str], lengths: list[int]
) -> None:
    """Also if white space, or what may become a marker, is held before such a token."""
    ids = [token_id for part in parts for token_id in PARTS[part]]
    hidden, shown = pipeline("json", "text", *stops), pipeline("json", "text", *stops, keep_special=True)
    text = whole_of(steps_of(hidden, ids, lengths, FinishReason.LENGTH)).text
    whole = whole_of(steps_of(shown, ids, lengths, FinishReason.LENGTH)).text
    assert (hidden.num_tokens, hidden.finish) == (shown.num_tokens, shown.finish)
    assert text == whole.replace("<|end|>", "")


def fed(choice: Pipeline, text: str, finish: FinishReason, *, kind: str = "text") -> tuple[Whole, Finish | None]:
    pieces = by_ids(FORMATS["json"], text) if kind != "text" else [text]
    ids = ids_of("json", kind, pieces)
    whole = whole_of(steps_of(choice, ids, [1] * len(ids), finish))
    return whole, choice.finish


@pytest.mark.parametrize("kind", ["text", "added", "special"])
def test_a_stop_string_cuts_text_but_no_thought_and_no_argument(kind: str) -> None:
    choice = pipeline("json", kind, "stop")
    whole, finish = fed(choice, f"<think>stop</think>Well.{CALL}Now stop it", FinishReason.LENGTH, kind=kind)
    assert (whole.text, whole.reasoning) == ("Well.Now ", "stop")
    assert [call.arguments for call in whole.calls] == ['{"text": "a stop b"}']
    assert finish == Finish(Reason.CALLS, "stop") and choice.is_cut


@pytest.mark.parametrize("kind", ["text", "added", "special"])
@pytest.mark.parametrize(
    ("stop", "shown"),
    [("a</think>b", ""), ("</think>b", "a"), ("</think></think>", None), ("k>b", "a</thin"), ("k></think>b", None)],
)
def test_stop_strings_read_a_marker_that_is_shown_once(kind: str, stop: str, shown: str | None) -> None:
    """A marker that stands where it means nothing is text, as if it were no special token."""
    whole, finish = fed(pipeline("json", kind, stop), "a</think>b.", FinishReason.LENGTH, kind=kind)
    assert whole.text == ("a</think>b." if shown is None else shown)
    assert finish == (Finish(Reason.LENGTH) if shown is None else Finish(Reason.STOP, stop))


def test_text_held_for_a_stop_string_is_told_before_the_call_that_follows() -> None:
    choice = pipeline("json", "text", "stop")
    steps = steps_of(choice, [*f"st{CALL}op".encode()], (), FinishReason.LENGTH)
    events = [event for step in steps for event in step.events]
    assert events[0] == TextDelta("st") and isinstance(events[1], CallBegin)
    assert whole_of(steps).text == "stop" and not choice.is_cut, "it is no one text"


@pytest.mark.parametrize("opened", [False, True])
@given(
    text=st.text("a \n\t", max_size=8),
    stop=st.text("a \n\t", min_size=1, max_size=3),
    lengths=DELIVERIES,
)
def test_without_tools_a_stop_string_ends_text_as_soon_as_without_channels(
    opened: bool, text: str, stop: str, lengths: list[int]
) -> None:
    """White space counts at once. Only at the start it waits, because thoughts may follow it."""
    thoughts, ids = b"b</think>" if opened else b"", f"b{text}".encode()
    plain = Pipeline(tokenizer_of("json", "text").detokenizer((), True), StopSet([stop]), 0)
    choice = pipeline("json", "text", stop, opened=opened, has_tools=False)
    wanted = whole_of(steps_of(plain, ids, lengths, FinishReason.LENGTH)).text
    whole = whole_of(steps_of(choice, [*thoughts, *ids], lengths, FinishReason.LENGTH))
    assert (whole.text, choice.num_tokens - len(thoughts)) == (wanted, plain.num_tokens)
    assert choice.finish == plain.finish


@pytest.mark.parametrize("kind", ["text", "added", "special"])
def test_length_within_arguments_is_told_as_length(kind: str) -> None:
    whole, finish = fed(pipeline("json", kind), CUT_CALL, FinishReason.LENGTH, kind=kind)
    assert finish == Finish(Reason.LENGTH) and whole.calls[0].arguments == '{"text": "a st'


def test_an_answer_that_is_aborted_within_arguments_tells_what_it_has() -> None:
    choice = pipeline("json")
    first = choice.feed(tuple(CUT_CALL.encode()), None)
    assert whole_of([first, choice.end(Reason.ABORT)]).calls[0].arguments == '{"text": "a st'
    assert choice.finish == Finish(Reason.ABORT)


@pytest.mark.parametrize("kind", ["added", "special"])
def test_thoughts_are_counted_without_their_markers(kind: str) -> None:
    choice = pipeline("json", kind)
    fed(choice, "<think>abc</think>de", FinishReason.STOP, kind=kind)
    assert (choice.num_tokens, choice.num_reasoning) == (7, 3)
    opened = pipeline("json", kind, opened=True)
    fed(opened, "abc</think>de", FinishReason.LENGTH, kind=kind)
    assert (opened.num_tokens, opened.num_reasoning) == (6, 3)


def test_a_marker_in_the_middle_of_a_character() -> None:
    """The character is shown as incomplete, and what follows is not lost."""
    tokenizer = piece_tokenizer()
    tokenizer.add_tokens(list(FORMATS["json"].markers))
    markers = Markers(FORMATS["json"], tokenizer.token_to_id)
    channels = Channels(markers, tools=TOOLS, is_reasoning_open=True, response_id="a", choice=0)
    choice = Pipeline(WindowDetokenizer(tokenizer, frozenset(), ()), StopSet(()), 0, channels=channels)
    end, he, llo = (tokenizer.token_to_id(token) for token in ("</think>", "▁he", "llo"))
    assert end is not None and he is not None and llo is not None
    steps = [choice.feed((he, llo, 3 + 0xC3, end), None), choice.feed((3 + 0xC3, 3 + 0xA9, he), FinishReason.LENGTH)]
    whole = whole_of(steps)
    assert (whole.reasoning, whole.text) == ("hello\ufffd", "é he")
