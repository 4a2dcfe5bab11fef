import sys
from types import FrameType
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.dialects.openai.fields import CompletionRequest, parse
from gateway.words.strict_json import MAX_DEPTH, parse_json
from protocol.errors import BadRequest


def test_json() -> None:
    assert parse_json('{"a": [1, 2.5, "\\ud83d\\ude00é\\u0000", null, true]}'.encode()) == {
        "a": [1, 2.5, "\U0001f600é\0", None, True]
    }
    assert parse_json(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)) is not None


def test_null_and_unknown_fields_mean_nothing() -> None:
    body = {"prompt": "a", "unheard_of": {"x": 1}, **dict.fromkeys(CompletionRequest.model_fields, None)}
    assert parse(CompletionRequest, body | {"prompt": "a"}).model_dump(exclude_none=True) == {"prompt": "a"}


@pytest.mark.parametrize(
    "body", [{"prompt": [1.5] * 100_000}, {"prompt": "a", "stop": [1] * 100_000}, {"prompt": [[[]]] * 100_000}]
)
def test_a_list_of_faults_is_one_fault(body: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(CompletionRequest, body)
    cause = caught.value.__cause__
    assert isinstance(cause, ValidationError) and cause.error_count() <= 5


def test_other_threads_can_run_between_two_lists_of_token_ids() -> None:
    """Which they can where Python runs: pydantic alone would keep the interpreter until it has seen all of them."""
    calls = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    body, before = {"prompt": [[1, 2]] * 100}, sys.getprofile()
    sys.setprofile(note)
    try:
        parsed = parse(CompletionRequest, body)
    finally:
        sys.setprofile(before)
    assert parsed.prompt == body["prompt"] and len(calls) >= 100
