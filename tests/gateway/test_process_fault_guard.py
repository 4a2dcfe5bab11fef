"""A bug of the gateway's own, injected: one request fails, in one line of the log."""

import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai.write import BodyWriter, EventWriter
from gateway.generation.translate import Translator
from protocol.messages_gateway import Role
from tests.gateway.conftest import Setting, events, wait_until


class Bug:
    """Raises where it is put, and counts."""

    def __init__(self) -> None:
        self.num_raised = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_raised += 1
        raise ZeroDivisionError("a secret of the client")


async def is_well(setting: Setting) -> bool:
    """Whether nothing is in flight and the next request is served."""
    dispatch = setting.gateway.control.dispatch
    await wait_until(lambda: len(dispatch.requests) == 0 and not dispatch.loads)
    return (await setting.complete("x", max_tokens=2)).status_code == 200


def one_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The fields of the only line at warning or above."""
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert not record.exc_info and "secret" not in str(record.__dict__)
    fields: dict[str, Any] = record.__dict__["baton_fields"]
    return fields


@pytest.mark.parametrize(
    ("owner", "method", "stream"),
    [(Translator, "prompts", False), (BodyWriter, "body", False), (Translator, "prompts", True)],
)
async def test_before_the_answer(
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type[Any],
    method: str,
    stream: bool,
) -> None:
    await setting.add(Role.UNIFIED)
    bug = Bug()
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, bug)
        response = await setting.client.post(
            "/v1/completions", json={"prompt": "x", "stream": stream}, headers={"x-request-id": "mine"}
        )
    assert bug.num_raised == 1 and response.status_code == 500 and response.headers["x-request-id"] == "mine"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["code"] == "internal_error"
    assert "secret" not in response.text
    fields = one_line(caplog)
    assert (fields["x_request_id"], fields["kind"]) == ("mine", "ZeroDivisionError")
    assert fields["at"].startswith(f"{Path(__file__).name}:")
    assert 'baton_requests_total{model_name="story",outcome="internal_error"} 1.0' in await setting.metrics()
    assert await is_well(setting)


async def test_in_mid_stream(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await setting.add(Role.UNIFIED)
    bug = Bug()
    with monkeypatch.context() as patch:
        patch.setattr(EventWriter, "last", bug)
        response = await setting.complete("x", max_tokens=3, stream=True, stream_options={"include_usage": True})
    assert bug.num_raised == 1 and response.status_code == 200
    *chunks, last = events(response.text)
    assert len(chunks) == 3 and last["error"]["code"] == "internal_error"
    assert one_line(caplog)["kind"] == "ZeroDivisionError"
    assert await is_well(setting)
