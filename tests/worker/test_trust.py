"""Keys of a worker, which it reads before it loads anything."""

from pathlib import Path
from typing import Any

import pytest

from deploy.keys import new
from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from protocol.messages_group import GroupPlace
from runtime.settings import WorkerSettings
from worker.trust import read_trust, why_unanswered


def settings(role: Role, **fields: Any) -> WorkerSettings:
    return WorkerSettings(worker_id="w", role=role, gateway="tcp://127.0.0.1:1", model="/m", **fields)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_what_others_reach_is_bound_with_keys_or_on_a_word(role: Role, tmp_path: Path) -> None:
    new(tmp_path / "keys", [])
    with pytest.raises(ConfigError, match="can be reached from other machines") as caught:
        read_trust(settings(role, host="0.0.0.0"))
    assert caught.value.param == "keys"
    assert read_trust(settings(role, host="0.0.0.0", trust_network=True)) is None
    keys = read_trust(settings(role, host="0.0.0.0", keys=str(tmp_path / "keys/worker")))
    assert keys is not None and not keys.is_gateway


def test_who_binds_nothing_needs_no_keys() -> None:
    assert read_trust(settings(Role.UNIFIED, host="0.0.0.0")) is None


def test_encryption_that_cannot_be_is_refused(tmp_path: Path) -> None:
    new(tmp_path / "keys", [])
    with pytest.raises(ConfigError, match="--encrypt-data needs --keys DIR"):
        read_trust(settings(Role.DECODE, encrypt_data=True))
    folder = str(tmp_path / "keys/worker")
    with pytest.raises(ConfigError, match="nixl has connections that Baton cannot encrypt"):
        read_trust(settings(Role.PREFILL, encrypt_data=True, keys=folder, transfer_backend="nixl"))
    assert read_trust(settings(Role.PREFILL, encrypt_data=True, keys=folder, transfer_backend="zmq")) is not None


def test_kv_that_others_may_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new(tmp_path / "keys", [])
    caplog.set_level("INFO")
    folder = str(tmp_path / "keys/worker")
    read_trust(settings(Role.DECODE, keys=folder))
    read_trust(settings(Role.DECODE, keys=folder, host="0.0.0.0", encrypt_data=True))
    assert caplog.messages == []
    read_trust(settings(Role.DECODE, keys=folder, host="0.0.0.0"))
    assert caplog.messages == ["KV from other hosts is not encrypted"]


@pytest.mark.parametrize("has_keys, named", [(True, "may have no --keys, or"), (False, "may have --keys;")])
def test_a_rank_that_hears_nothing_may_wait_for_its_group(has_keys: bool, named: str) -> None:
    alone = why_unanswered(GroupPlace("w", 1, 0, 1), has_keys=has_keys)
    assert named in alone and "rank" not in alone
    of_group = why_unanswered(GroupPlace("d", 1, 0, 3), has_keys=has_keys)
    assert of_group == f"the gateway answers once all 3 ranks of group 'd' have registered; or {alone}"
