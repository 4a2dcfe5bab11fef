import pytest

from gateway.text.answer_format import OFF, ChannelRules, answer_format
from gateway.text.channels.formats import CALL_FORMATS, HERMES, QWEN3_CODER, REASONING_FORMATS, THINK, THINK_FIRST
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.words.events import CallBegin, CallDelta, CallEnd
from protocol.errors import ConfigError
from tests.gateway.text.channels import templates
from tests.gateway.text.channels.templates import renderer

QWEN, CHAT_ONLY = renderer(templates.QWEN), renderer(templates.CHAT_ONLY)


def no_id(_text: str) -> None:
    """The tokenizer has no markers."""


def test_the_template_tells_the_format_and_the_tokenizer_the_ids_of_its_markers() -> None:
    found = answer_format(QWEN, {"<tool_call>": 7, "<think>": 9}.get, None, None)
    assert (found.calls, found.reasoning, found.arguments) == ("hermes", "qwen3", "object")
    assert found.markers.format == Format(HERMES, THINK)
    assert dict(found.markers.by_id) == {7: "<tool_call>", 9: "<think>"}

    of_text = answer_format(renderer(templates.QWEN_OF_TEXT), no_id, None, None)
    assert (of_text.calls, of_text.reasoning, of_text.arguments) == ("hermes", None, "text")


def test_a_template_that_tells_no_format_has_none() -> None:
    found = answer_format(CHAT_ONLY, no_id, None, None)
    assert found.markers.format == Format() and (found.calls, found.reasoning) == (None, None)


def test_the_user_overrules_each_of_both() -> None:
    calls = answer_format(QWEN, no_id, "qwen3_xml", None)
    assert calls.markers.format == Format(QWEN3_CODER, THINK)
    assert (calls.calls, calls.reasoning) == ("qwen3_coder", "qwen3")
    reasoning = answer_format(QWEN, no_id, None, "deepseek_r1")
    assert reasoning.markers.format == Format(HERMES, THINK_FIRST)
    both = answer_format(CHAT_ONLY, no_id, "hermes", "deepseek-r1")
    assert both.markers.format == Format(HERMES, THINK_FIRST)
    assert answer_format(QWEN, no_id, OFF, OFF).markers.format == Format()


def test_every_known_name_is_taken() -> None:
    for name, calls in CALL_FORMATS.items():
        assert answer_format(CHAT_ONLY, no_id, name, None).markers.format.calls == calls
    for name, reasoning in REASONING_FORMATS.items():
        assert answer_format(CHAT_ONLY, no_id, None, name).markers.format.reasoning == reasoning


@pytest.mark.parametrize(("calls", "reasoning"), [("hermse", None), (None, "qwen4")])
def test_unknown_names_are_refused_with_the_known_ones(calls: str | None, reasoning: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        answer_format(QWEN, no_id, calls, reasoning)
    option, known = ("tool-call-parser", CALL_FORMATS) if calls else ("reasoning-parser", REASONING_FORMATS)
    assert caught.value.param == option
    assert caught.value.message.startswith(f"--{option}: got {calls or reasoning!r}, expected one of ")
    assert all(name in caught.value.message for name in (*known, OFF))


def test_the_rules_of_a_prompt_make_the_channels_of_each_choice() -> None:
    markers = Markers(Format(HERMES), lambda _: None)
    rules = ChannelRules(markers, {"f": None}, is_reasoning_open=False, most_calls=1)
    call = '<tool_call>{"name": "f"}</tool_call>'
    ids = set()
    for choice in (0, 1, 0):
        channels = rules.channels("answer", choice)
        first, *others = channels.text(call + call) + channels.end()
        assert isinstance(first, CallBegin)
        assert others == [CallDelta(0, "{}"), CallEnd(0)], "the second call is left out"
        ids.add(first.id)
    assert len(ids) == 2, "each choice has ids of its own, and the same ones each time"
