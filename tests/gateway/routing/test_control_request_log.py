"""What the log says of requests: numbers and names, never what clients or models wrote."""

import asyncio
import logging
from typing import Any

import pytest

from protocol.messages_gateway import Left, Role
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting


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
        "request_id": ",".join(f"{response.json()['id']}-{prompt}" for prompt in (0, 1)),
        "attempt": 0,
        "worker": "prefill-0+decode-1",
        "x_request_id": "mine",
        "prompt_tokens": 13,
        "choices": 2,
        "tokens_out": 6,
        "outcome": "ok",
    }
    assert not any("private" in str(record.__dict__) for record in caplog.records)


async def test_failures_are_told_at_info(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton")
    refused = await setting.complete("very private")
    [(level, fields)] = lines(caplog, "request failed")
    assert level == "INFO" and fields["why"] == "no worker is ready yet"
    assert fields["x_request_id"] == refused.headers["x-request-id"]
    caplog.clear()
    await setting.add(Role.UNIFIED, "u", behaviour=Behaviour(fail_after=1))
    failed = await setting.complete("very private", max_tokens=3)
    [(level, fields)] = lines(caplog, "request failed")
    assert (level, fields["outcome"], fields["worker"]) == ("WARNING", "internal_error", "u")
    assert fields["x_request_id"] == failed.headers["x-request-id"] and fields["why"] == "it was told to"
    caplog.clear()
    await setting.complete("very private", temperature=-1)
    assert not caplog.records


async def test_a_full_worker_is_no_warning(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton")
    await setting.add(Role.UNIFIED, "u", behaviour=Behaviour(fail_after=0, fail_code="queue_full"))
    assert (await setting.complete("x")).status_code == 429
    [(level, fields)] = lines(caplog, "request failed")
    assert (level, fields["outcome"], fields["worker"]) == ("INFO", "overloaded", "u")


async def test_a_retry_is_told_with_its_attempt_and_its_workers(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "baton")
    lost = await setting.add(Role.UNIFIED, "first", behaviour=Behaviour(stop_after=2))
    sending = asyncio.create_task(setting.complete("very private", max_tokens=4))
    await lost.until(lambda: bool(lost.assigned))
    await setting.add(Role.UNIFIED, "second")
    await lost.send(Left(lost.worker_id, lost.instance))
    response = await sending
    request_id = f"{response.json()['id']}-0"
    [(level, fields)] = lines(caplog, "request retried")
    assert level == "WARNING" and fields.pop("why")
    assert fields == {"request_id": request_id, "attempt": 1, "worker": "second", "before": "first"}
    [(level, fields)] = lines(caplog, "request ended")
    ids = {name: fields[name] for name in ("request_id", "attempt", "worker")}
    assert ids == {"request_id": request_id, "attempt": 1, "worker": "first,second"}
