"""How a chat writes a choice: a message, or deltas of one, with text, thoughts and calls of tools."""

from dataclasses import dataclass
from typing import Any, Final

from gateway.serving.gathered import Gathered
from gateway.serving.parts import Later, text_json
from gateway.text.channels.fold import GatheredCall, GatheredText
from gateway.words.events import CallBegin, CallDelta, ReasoningDelta, Step

Fields = dict[str, Any]
# OpenAI's messages always have these. Clients with strict types fail without them.
MESSAGE: Final[Fields] = {"role": "assistant", "content": "", "refusal": None, "annotations": []}
FIRST_DELTA: Final[Fields] = {"role": "assistant", "content": "", "refusal": None}


@dataclass(frozen=True)
class ChatForm:
    """A Form of write.py. Thoughts have two names: DeepSeek's, and that of vLLM and OpenRouter."""

    body_object: str = "chat.completion"
    event_object: str = "chat.completion.chunk"
    around_text: tuple[bytes, bytes] = (b'"delta":{"content":', b"}")

    def whole(self, gathered: Gathered) -> Fields:
        """See Form."""
        message = MESSAGE | {"content": _json(gathered.text)}
        if gathered.reasoning.num_chars:
            message |= _thoughts(_json(gathered.reasoning))
        if gathered.calls:
            message["tool_calls"] = [_call(call) for call in gathered.calls]
            if not gathered.text.num_chars:
                message["content"] = None
        return {"message": message}

    def added(self, step: Step, *, is_first: bool) -> Fields:
        """See Form. Text and thoughts that alternate in one Step lose their order, but not within each of them."""
        delta: Fields = dict(FIRST_DELTA) if is_first else {}
        text, thoughts, calls = step.text, _thoughts_of(step), _calls_of(step)
        if text or not (thoughts or calls or is_first):
            delta["content"] = text_json((text,), len(text))
        if thoughts:
            delta |= _thoughts(text_json((thoughts,), len(thoughts)))
        if calls:
            delta["tool_calls"] = calls
        return {"delta": delta}

    def of_choice(self, prompt: Fields) -> Fields:
        """See Form."""
        return {}

    def of_body(self, prompt: Fields) -> Fields:
        """See Form."""
        return prompt


def _json(text: GatheredText) -> str | Later:
    return text_json(text.pieces, text.num_chars)


def _thoughts(text: str | Later) -> Fields:
    return {"reasoning_content": text, "reasoning": text}


def _call(call: GatheredCall) -> Fields:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments)}}


def _thoughts_of(step: Step) -> str:
    return "".join(event.text for event in step.events if isinstance(event, ReasoningDelta))


def _calls_of(step: Step) -> list[Fields]:
    """The field `tool_calls` of a delta: one item for each call. A second one of a call would confuse clients."""
    items: dict[int, Fields] = {}
    for event in step.events:
        if isinstance(event, CallBegin):
            function = {"name": event.name, "arguments": ""}
            items[event.call] = {"index": event.call, "id": event.id, "type": "function", "function": function}
        elif isinstance(event, CallDelta):
            item = items.setdefault(event.call, {"index": event.call, "function": {"arguments": ""}})
            item["function"]["arguments"] += event.json
    return list(items.values())
