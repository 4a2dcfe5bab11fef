import json
import os
from dataclasses import asdict
from typing import Any

import pytest

from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.settings import GatewaySettings, WorkerSettings, read_arguments

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


SETTINGS = GatewaySettings(model="/m", served_model_name=("story",))


def test_settings_and_status_descriptor_are_read() -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd), os.fdopen(write_fd):
        found = read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json(), "--status-fd", str(write_fd)])
    assert found == (SETTINGS, write_fd)


@pytest.mark.parametrize("number", ["-1", "999999", str(2**70)])
def test_a_descriptor_that_is_not_open_is_refused(number: str) -> None:
    with pytest.raises(ConfigError, match=f"--status-fd: got {number}, expected an open descriptor"):
        read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json(), f"--status-fd={number}"])


def test_the_status_descriptor_may_be_absent() -> None:
    assert read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json()]) == (SETTINGS, None)


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'role'"):
        read_arguments(GatewaySettings, ["--settings", '{"role": "prefill"}'])
