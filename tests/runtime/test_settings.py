import json
from dataclasses import asdict
from typing import Any

import pytest

from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.settings import GatewaySettings, WorkerSettings

WORKER = WorkerSettings(worker_id="decode-0", role=Role.DECODE, gateway="tcp://127.0.0.1:1", model="/m")
GATEWAY = GatewaySettings(model="/m", served_model_name=("story",))


def changed(**fields: Any) -> str:
    return json.dumps(asdict(WORKER) | fields)


def test_settings_survive_json() -> None:
    assert WorkerSettings.from_json(WORKER.to_json()) == WORKER
    assert GatewaySettings.from_json(GATEWAY.to_json()) == GATEWAY
    assert WorkerSettings.from_json(WORKER.to_json()).role is Role.DECODE


def test_json_is_one_line() -> None:
    assert "\n" not in WORKER.to_json()


@pytest.mark.parametrize(
    "text, says",
    [
        (changed(pge_size=1), "unknown key 'pge_size', expected one of model"),
        ('{"worker_idd": "x"}', "unknown key 'worker_idd', expected one of model"),
        ('{"worker_id": "x", "model": "/m"}', "'role' is missing"),
        (changed(page_size="16"), "page_size: got '16'"),
        (changed(page_size=0), "page_size: got '0'"),
        (changed(role="router"), "role: got 'router'"),
        (changed(disable_overlap_schedule=1), "disable_overlap_schedule: got '1'"),
        (changed(device="tpu"), "device: got 'tpu'"),
        ("[]", "WorkerSettings: got"),
        ("{", "Invalid JSON"),
    ],
)
def test_wrong_settings_are_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerSettings.from_json(text)
    assert says in caught.value.message
