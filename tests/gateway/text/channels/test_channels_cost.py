"""What channels cost does not grow with what was read before. Counted in instructions of Python, not in seconds."""

import pytest

from gateway.text.channels.readers import MAX_HEADER
from gateway.text.channels.tagged_calls import TaggedCall
from tests.counting import instructions
from tests.gateway.text.channels.reading import JSON, MINIMAX, PAIRS, TAGS, channels, deliver

LONG = 240  # characters
TEXTS = {
    "plain text": (JSON, "word ", ""),
    "white space": (JSON, "\n", ""),
    "what begins like a marker": (JSON, "<tool_", ""),
    "markers of no call": (JSON, "<tool_call>", ""),
    "thoughts": (JSON, "hm. ", "<think>"),
    "a string": (JSON, "word \\n", '<tool_call>{"name": "f", "arguments": {"text": "'),
    "brackets": (JSON, "[[]],", '<tool_call>{"name": "f", "arguments": {"text": ['),
    "a number": (JSON, "1", '<tool_call>{"name": "f", "arguments": {"count": '),
    "arguments before the name": (JSON, "word ", '<tool_call>{"arguments": {"text": "'),
    "white space behind a call": (JSON, " ", '<tool_call>{"name": "f"}'),
    "a value": (TAGS, "word ", "<tool_call><function=f><parameter=text>"),
    "a value that is told when it is whole": (TAGS, "1, ", "<tool_call><function=f><parameter=items>["),
    "closing tags within a value": (TAGS, "</parameter>", "<tool_call><function=f><parameter=text>"),
    "closing tags of calls within a value": (TAGS, "</function>\n", "<tool_call><function=f><parameter=text>"),
    "white space behind a closing tag": (TAGS, "\n", "<tool_call><function=f><parameter=text></parameter>"),
    "a key without an end": (MINIMAX, "k", '<minimax:tool_call><invoke name="f"><parameter name="'),
    "a name without an end": (PAIRS, "f", "<tool_call>"),
    "closing tags of a pair's value": (PAIRS, "</arg_value>\n", "<tool_call>f<arg_key>text</arg_key><arg_value>"),
    "calls": (MINIMAX, '<invoke name="f"></invoke>', "<minimax:tool_call>"),
}


def cost(name: str, num: int, size: int) -> int:
    form, part, before = TEXTS[name]
    text = part * num
    pieces = [before, *(text[at : at + size] for at in range(0, len(text), size))]
    return instructions(lambda: deliver(channels(form), pieces))


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["by character", "as one delivery"])
@pytest.mark.parametrize("name", TEXTS)
def test_twice_the_text_costs_twice(name: str, size: int) -> None:
    num = LONG // len(TEXTS[name][1])
    assert cost(name, 2 * num, size) < 2.3 * cost(name, num, size) + 2_000


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_read_again_is_bounded(name: str) -> None:
    """What a later delivery reads a second time, in C code, too, is a part of a tag."""
    form, part, before = TEXTS[name]
    reader = channels(form)
    reader.text(before)
    for char in part * (2_000 // len(part)):
        reader.text(char)
        assert len(reader._in_text._held) < MAX_HEADER
        assert not isinstance(reader._reader, TaggedCall) or len(reader._reader._part) < MAX_HEADER


def test_a_token_of_text_costs_little() -> None:
    """Plain text of a choice with tools: some hundred instructions a delivery."""
    reader = channels(JSON)
    assert instructions(lambda: deliver(reader, ["word "] * 100)) < 100 * 300
