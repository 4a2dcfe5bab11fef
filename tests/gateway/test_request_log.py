"""What the log says of requests: numbers and names, never what clients or models wrote."""

import logging
from typing import Any

import pytest

from gateway.http_app import Service
from protocol.messages_gateway import Role
from tests.gateway.conftest import Setting
from tests.gateway.fake_worker import Behaviour


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[str, dict[str, Any]]]:
    """Level and fields of each event of that name."""
    found = [record for record in caplog.records if record.getMessage() == event]
    return [(record.levelname, record.__dict__["baton_fields"]) for record in found]


async def test_a_request_that_ends_well_is_told_at_debug(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "baton")
    await setting.add_pair()
    headers = {"x-request-id": "mine"}
    body = {"prompt": ["very private", "x"], "max_tokens": 3}
    response = await setting.client.post("/v1/completions", json=body, headers=headers)
    [(level, fields)] = lines(caplog, "request ended")
    assert level == "DEBUG" and fields.pop("seconds") >= 0
    assert fields == {
        "request": "mine",
        "response": response.json()["id"],
        "prompt_tokens": 13,
        "choices": 2,
        "tokens_out": 6,
        "pair": "prefill-0+decode-1",
        "outcome": "ok",
    }
    assert not any("private" in str(record.__dict__) for record in caplog.records)


async def test_failures_are_told_at_info(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton")
    refused = await setting.complete("very private")
    [(level, fields)] = lines(caplog, "request failed")
    assert level == "INFO" and fields["why"] == "no worker is ready yet"
    assert fields["request"] == refused.headers["x-request-id"]
    caplog.clear()
    await setting.add(Role.UNIFIED, "u", behaviour=Behaviour(fail_after=1))
    failed = await setting.complete("very private", max_tokens=3)
    [(level, fields)] = lines(caplog, "request failed")
    assert (level, fields["outcome"], fields["pair"]) == ("WARNING", "internal_error", "u")
    assert fields["request"] == failed.headers["x-request-id"] and fields["why"] == "it was told to"
    caplog.clear()
    await setting.complete("very private", temperature=-1)
    assert not caplog.records


async def test_a_fault_of_the_gateway_names_its_place(
    setting: Setting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_service: Service) -> None:
        raise KeyError("very private")

    monkeypatch.setattr(Service, "limits", property(fail))
    await setting.add_pair()
    response = await setting.complete("x")
    assert response.status_code == 500 and response.headers["x-request-id"].startswith("req-")
    [(level, fields)] = lines(caplog, "request failed by a fault of the gateway")
    assert level == "ERROR" and fields["kind"] == "KeyError" and "test_request_log.py:" in fields["at"]
    assert fields["request"] == response.headers["x-request-id"]
