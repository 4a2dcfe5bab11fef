"""Completions and chats write reasons of ends and counts of thoughts alike."""

import pytest

from gateway.dialects.openai.write import reason_of, usage_fields
from gateway.words.events import Finish, Reason, Usage


@pytest.mark.parametrize(("reason", "written"), [("stop", "stop"), ("length", "length"), ("calls", "tool_calls")])
def test_a_reason_has_openais_name(reason: str, written: str) -> None:
    assert reason_of(Finish(Reason(reason))) == written and reason_of(None) is None


def test_thoughts_are_counted_if_there_are_any() -> None:
    plain = usage_fields(Usage(prompt=5, cached=2, completion=3))
    assert plain == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    counted = usage_fields(Usage(prompt=5, cached=2, completion=3, reasoning=1))
    assert counted == {**plain, "completion_tokens_details": {"reasoning_tokens": 1}}
