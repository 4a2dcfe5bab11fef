from dataclasses import replace
from typing import Any

import pytest

from gateway.membership import LOST_AFTER_S, Change, Membership, WorkerKey
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import (
    Heartbeat,
    KvPages,
    Leaving,
    PeerLost,
    Refused,
    Register,
    RegisterAgain,
    Role,
    Welcome,
    WorkerAddress,
    WorkerStats,
)

LAYOUT = KvLayout(2, 1, 4, 16, "float32")
STATS = WorkerStats(KvPages(10, 10), 0, 0)


def register(worker_id: str, instance: int, role: Role = Role.DECODE, **fields: Any) -> Register:
    base = Register(
        WorkerAddress(worker_id, instance), role, 1, "host", LAYOUT, "model-a", 300, 512, 8, 160, STATS, "zmq"
    )
    return replace(base, **fields)


def messages(change: Change) -> list[object]:
    return [each.message for each in change.outgoing]


@pytest.fixture
def table() -> Membership:
    return Membership(77)


def test_admits_and_knows_the_roles(table: Membership) -> None:
    change = table.register(register("p", 1, Role.PREFILL), 0.0)
    assert messages(change) == [Welcome(77)] and change.joined is not None
    assert not table.can_serve
    table.register(register("d", 2), 0.0)
    assert table.can_serve
    assert [member.key.worker_id for member in table.members] == ["d", "p"]


def test_a_unified_worker_serves_alone(table: Membership) -> None:
    table.register(register("u", 1, Role.UNIFIED, backend=""), 0.0)
    assert table.can_serve


def test_registering_again_is_welcome_and_changes_nothing(table: Membership) -> None:
    table.register(register("d", 2), 0.0)
    busy = WorkerStats(KvPages(10, 3, owned=7), 4, 1)
    change = table.register(register("d", 2, stats=busy), 1.0)
    assert messages(change) == [Welcome(77)] and change.joined is None and change.lost == ()
    assert table.members[0].stats == busy and table.members[0].last_seen == 1.0


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"layout": replace(LAYOUT, page_size=8)}, ("page_size", "16", "8")),
        ({"layout": replace(LAYOUT, dtype="bfloat16")}, ("dtype", "float32", "bfloat16")),
        ({"fingerprint": "model-b"}, ("fingerprint", "model-a", "model-b")),
        ({"vocab_size": 301}, ("vocabulary", "300", "301")),
        ({"backend": "shm"}, ("backend", "zmq", "shm")),
    ],
)
def test_refuses_who_differs_and_names_both_values(
    table: Membership, fields: dict[str, Any], values: tuple[str, ...]
) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    [refused] = messages(table.register(register("d", 2, **fields), 0.0))
    assert isinstance(refused, Refused)
    assert all(value in refused.reason for value in values), refused.reason
    assert len(table.members) == 1


def test_the_only_worker_may_be_replaced_by_another_model(table: Membership) -> None:
    table.register(register("u", 1, Role.UNIFIED), 0.0)
    change = table.register(register("u", 2, Role.UNIFIED, fingerprint="model-b"), 0.1)
    assert messages(change) == [Welcome(77)]
    assert [member.key.instance for member in change.lost] == [1]


def test_silence_ends_membership_for_ever(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    table.heartbeat(Heartbeat("p", 1, STATS, 0.5), 1.5)
    assert table.expire(LOST_AFTER_S - 0.01) == Change()
    change = table.expire(LOST_AFTER_S)
    assert [member.key for member in change.lost] == [WorkerKey("d", 2)]
    assert [(each.to, each.message) for each in change.outgoing] == [(WorkerKey("p", 1), PeerLost("d", 2))]
    assert not table.can_serve
    for again in (table.heartbeat(Heartbeat("d", 2, STATS), 3.0), table.register(register("d", 2), 3.0)):
        [refused] = messages(again)
        assert isinstance(refused, Refused) and "silent" in refused.reason
    assert messages(table.register(register("d", 3), 3.0)) == [Welcome(77)]


def test_two_lost_at_once_are_not_told_of_each_other(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    change = table.expire(10.0)
    assert len(change.lost) == 2 and change.outgoing == ()


def test_leaving_is_at_once(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    assert table.leaving(Leaving("d", 99)) == Change()
    change = table.leaving(Leaving("d", 2))
    assert messages(change) == [PeerLost("d", 2)]
    assert table.find(WorkerKey("d", 2)) is None


def test_a_new_instance_replaces_the_old_one(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    change = table.register(register("d", 3), 0.5)
    assert [member.key.instance for member in change.lost] == [2]
    assert PeerLost("d", 2) in messages(change)
    assert isinstance(messages(table.heartbeat(Heartbeat("d", 2, STATS), 0.6))[0], Refused)
    assert table.find(WorkerKey("d", 3)) is not None


def test_an_unknown_worker_is_asked_to_register(table: Membership) -> None:
    assert messages(table.heartbeat(Heartbeat("d", 5, STATS), 0.0)) == [RegisterAgain(77)]
