from dataclasses import replace
from typing import Any

import pytest

from gateway.routing.members import Change, HowLost, WorkerKey
from gateway.routing.membership import LEAD_S, MOST_LOSSES, Membership
from protocol.fingerprint import Fingerprint, WeightsPrint, pack_weights
from protocol.kv_layout import KvLayout, LayerGroup
from protocol.messages_gateway import DeclaredLost, Heartbeat, PeerLost, Refused, RegisterAgain, Role, Welcome
from protocol.worker_facts import KvPages, WorkerStats
from runtime.settings import GatewaySettings
from tests.gateway.worker_ends import LAYOUT, MODEL, STATS, register


def messages(change: Change) -> list[object]:
    return [message for _, message in change.outgoing]


@pytest.fixture
def table() -> Membership:
    return Membership(77)


def test_admits_and_knows_the_roles(table: Membership) -> None:
    change = table.register(register("p", 1, Role.PREFILL), 0.0)
    assert messages(change) == [Welcome(77)] and len(change.joined) == 1
    assert table.missing == "no decode worker is ready yet"
    table.register(register("d", 2), 0.0)
    assert table.missing is None
    assert [member.key.worker_id for member in table.members] == ["d", "p"]


def test_a_unified_worker_serves_alone(table: Membership) -> None:
    table.register(register("u", 1, Role.UNIFIED, backend=""), 0.0)
    assert table.missing is None


def test_registering_again_is_welcome_and_changes_nothing(table: Membership) -> None:
    table.register(register("d", 2), 0.0)
    busy = WorkerStats(KvPages(10, 3, owned=7), 4, 1)
    change = table.register(register("d", 2, stats=busy), 1.0)
    assert messages(change) == [Welcome(77)] and change.joined == () and change.lost == ()
    assert table.members[0].stats == busy and table.members[0].last_seen == 1.0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layout": KvLayout.uniform(2, 1, 8, 16, "float32")}, "head_dim is 8 on d, 4 on p"),
        ({"layout": replace(LAYOUT, dtype="bfloat16")}, "dtype is bfloat16 on d, float32 on p"),
        ({"fingerprint": Fingerprint("model-b")}, "model fingerprint is model-b on d, model-a on p"),
        (
            {"fingerprint": pack_weights("model-a", {"w": bytes(8)})},
            f"weights: the digest of tensor 'w' is {0:016x} on d, {1:016x} on p (1 of 1 tensors differ)",
        ),
        ({"vocab_size": 301}, "vocabulary size is 301 on d, 300 on p"),
        ({"backend": "shm"}, "transfer backend is shm on d, zmq on p"),
        ({"encrypts_data": True}, "--encrypt-data is given on d, not given on p"),
    ],
)
def test_refuses_who_differs_and_names_both_values(table: Membership, fields: dict[str, Any], reason: str) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    assert messages(table.register(register("d", 2, **fields), 0.0)) == [Refused(reason)]
    assert len(table.members) == 1


WITH_DRAFT: dict[str, Any] = {
    "layout": replace(LAYOUT, groups=(*LAYOUT.groups, LayerGroup(1, 1, 4, lookahead=1))),
    "fingerprint": replace(MODEL, draft=WeightsPrint("e", facts={"algorithm": "eagle"})),
}


@pytest.mark.parametrize("ids", [("p", "d"), ("d", "p")])
def test_a_pair_has_one_draft_unless_decode_goes_without(table: Membership, ids: tuple[str, str]) -> None:
    workers = {"p": register("p", 1, Role.PREFILL), "d": register("d", 2, **WITH_DRAFT)}
    drafts = {"p": "none", "d": "eagle"}
    first, second = ids
    table.register(workers[first], 0.0)
    reason = f"--speculative-algorithm is {drafts[second]} on {second}, {drafts[first]} on {first}"
    assert messages(table.register(workers[second], 0.0)) == [Refused(reason)]

    careless = Membership(77)  # prefill's word is not enough: decode would refuse its KV
    careless.register(replace(workers["p"], may_lack_draft=True), 0.0)
    assert messages(careless.register(workers["d"], 0.0)) == [
        Refused("--speculative-algorithm is eagle on d, none on p")
    ]

    workers["d"] = replace(workers["d"], may_lack_draft=True)
    other = Membership(77)
    assert [messages(other.register(workers[each], 0.0)) for each in ids] == [[Welcome(77)]] * 2


def test_workers_that_make_no_pair_may_have_different_drafts(table: Membership) -> None:
    for each in (
        register("p", 1, Role.PREFILL),
        register("u", 2, Role.UNIFIED, backend="", **WITH_DRAFT),
        register("v", 3, Role.UNIFIED, backend=""),
        register("d", 4),
    ):
        assert messages(table.register(each, 0.0)) == [Welcome(77)]


@pytest.mark.parametrize(
    ("at_gateway", "on_worker", "joins"), [("t", "t", True), ("t", "x", False), ("", "x", True), ("t", "", True)]
)
def test_the_tokenizer_of_a_worker_is_compared_with_the_gateways(at_gateway: str, on_worker: str, joins: bool) -> None:
    table = Membership(77, tokenizer=at_gateway)
    [answer] = messages(table.register(register("u", 1, fingerprint=replace(MODEL, tokenizer=on_worker)), 0.0))
    refused = Refused("tokenizer.json: its digest is x on u, t at the gateway")
    assert answer == (Welcome(77) if joins else refused) and len(table.members) == joins


@pytest.mark.parametrize(
    ("at_gateway", "on_worker", "reason"),
    [
        ({"num_layers": "2", "rope.theta": "1.0"}, {"num_layers": "2", "rope.theta": "1.0"}, None),
        ({"num_layers": "2"}, {"num_layers": "5"}, "num_layers is 5 on u, 2 on the gateway"),
        ({"num_layers": "2"}, {"num_heads": "2"}, "num_heads is 2 on u, missing on the gateway"),
        ({}, {"num_layers": "5"}, None),  # a folder without config.json
        ({"num_layers": "2"}, {}, None),  # a fake model
    ],
)
def test_the_configuration_of_a_worker_is_compared_with_the_gateways(
    at_gateway: dict[str, str], on_worker: dict[str, str], reason: str | None
) -> None:
    table = Membership(77, facts=at_gateway)
    [answer] = messages(table.register(register("u", 1, fingerprint=replace(MODEL, facts=on_worker)), 0.0))
    assert answer == (Welcome(77) if reason is None else Refused(reason)) and len(table.members) == (reason is None)


def test_the_missing_role_is_named_and_yet_only_before_its_first_worker(table: Membership) -> None:
    assert table.missing == "no worker is ready yet"
    table.register(register("d", 1), 0.0)
    assert table.missing == "no prefill worker is ready yet"
    table.register(register("p", 2, Role.PREFILL), 0.0)
    table.give_up(WorkerKey("p", 2), "has left")
    assert table.missing == "no prefill worker is ready"
    table.give_up(WorkerKey("d", 1), "has left")
    assert table.missing == "no worker is ready"
    table.register(register("p", 3, Role.PREFILL), 0.0)
    assert table.missing == "no decode worker is ready"


def test_the_only_worker_may_be_replaced_by_another_model(table: Membership) -> None:
    table.register(register("u", 1, Role.UNIFIED), 0.0)
    table.give_up(WorkerKey("u", 1), "has left")
    change = table.register(register("u", 2, Role.UNIFIED, fingerprint=Fingerprint("model-b")), 0.1)
    assert messages(change) == [Welcome(77)]


def test_the_limit_of_silence_is_an_option() -> None:
    table = Membership(77, silence_limit_s=60)
    table.register(register("d", 2), 0.0)
    assert table.expire(60 - 2 * LEAD_S) == Change()
    assert [member.key for member in table.expire(60).lost] == [WorkerKey("d", 2)]


def test_who_was_silent_is_told_so_and_may_join_as_another_instance(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    table.heartbeat(Heartbeat("p", 1, STATS, 0.5), 1.5)
    assert table.expire(GatewaySettings.silence_limit_s - LEAD_S - 0.01) == Change()
    change = table.expire(GatewaySettings.silence_limit_s)
    assert [member.key for member in change.lost] == [WorkerKey("d", 2)]
    assert list(change.outgoing) == [(WorkerKey("p", 1), PeerLost("d", 2))]
    assert table.missing is not None
    for again in (table.heartbeat(Heartbeat("d", 2, STATS), 3.0), table.register(register("d", 2), 3.0)):
        assert messages(again) == [DeclaredLost("worker 'd' was silent for 2.0 s")] and not again.joined
    assert messages(table.register(register("d", 3), 3.0)) == [Welcome(77)]
    assert messages(table.heartbeat(Heartbeat("d", 2, STATS), 3.0)) == [DeclaredLost("worker 'd' was silent for 2.0 s")]
    assert [member.key.instance for member in table.members if member.role is Role.DECODE] == [3]


@pytest.mark.parametrize("why", ["has dropped its connection", "has received 9 messages of 3 that were sent to it"])
def test_who_has_lost_its_connection_may_return_too(table: Membership, why: str) -> None:
    table.register(register("d", 2), 0.0)
    table.give_up(WorkerKey("d", 2), why)
    assert messages(table.register(register("d", 2), 0.1)) == [DeclaredLost(f"worker 'd' {why}")]


def test_who_hangs_in_a_launch_may_not_return_however_it_was_lost() -> None:
    """Nothing but another process heals it."""
    for is_silent in (True, False):
        table = Membership(77, launch_deadline_s=30)
        table.register(register("d", 2), 0.0)
        table.heartbeat(Heartbeat("d", 2, STATS, launch_age_s=30.0), 0.9)
        change = table.expire(3.0) if is_silent else table.give_up(WorkerKey("d", 2), "is cut off")
        assert change.lost
        [answer] = messages(table.heartbeat(Heartbeat("d", 2, STATS), 1.1))
        assert isinstance(answer, Refused) and answer.reason.endswith("; this instance may not return")


def test_who_has_left_may_not_return(table: Membership) -> None:
    table.register(register("d", 2), 0.0)
    table.leaving(WorkerKey("d", 2))
    table.give_up(WorkerKey("d", 2), "has left", HowLost.LEFT)
    assert messages(table.register(register("d", 2), 0.1)) == [
        Refused("worker 'd' has left; this instance may not return")
    ]


def test_welcome_tells_how_often_the_role_was_flushed(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    assert table.flush((Role.PREFILL,)) == (WorkerKey("p", 1),)
    assert messages(table.register(register("d", 2), 0.0)) == [Welcome(77, num_flushes=0)]
    assert table.flush((Role.DECODE, Role.UNIFIED)) == (WorkerKey("d", 2),)
    assert messages(table.register(register("d", 2), 0.0)) == [Welcome(77, num_flushes=1)]
    table.give_up(WorkerKey("p", 1), "is cut off")
    assert table.flush((Role.PREFILL,)) == ()
    assert messages(table.register(register("p", 3, Role.PREFILL), 0.0)) == [Welcome(77, num_flushes=2)]


def test_two_lost_at_once_are_not_told_of_each_other(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    change = table.expire(10.0)
    assert len(change.lost) == 2 and change.outgoing == ()


def test_leaving_is_at_once(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2), 0.0)
    assert table.give_up(WorkerKey("d", 99), "has left") == Change()
    change = table.give_up(WorkerKey("d", 2), "has left")
    assert messages(change) == [PeerLost("d", 2)]
    assert table.find(WorkerKey("d", 2)) is None


def test_a_new_instance_takes_over_when_the_old_one_is_lost(table: Membership) -> None:
    table.register(register("p", 1, Role.PREFILL), 0.0)
    table.register(register("d", 2, pid=41), 0.0)
    table.heartbeat(Heartbeat("p", 1, STATS), 1.5)
    waiting = table.register(register("d", 3, pid=42), 0.5)
    assert waiting.outgoing == () and waiting.lost == () and waiting.joined == ()
    assert waiting.kept_waiting == (
        "worker id 'd' is taken by a live decode worker (pid 41 on host); pid 42 may join when that one is gone"
    )
    assert table.register(register("d", 3, pid=42), 1.5) == Change()  # said once
    assert [member.key.instance for member in table.expire(GatewaySettings.silence_limit_s).lost] == [2]
    assert messages(table.register(register("d", 3, pid=42), 2.5)) == [Welcome(77)]
    assert isinstance(messages(table.heartbeat(Heartbeat("d", 2, STATS), 2.6))[0], DeclaredLost)
    assert table.find(WorkerKey("d", 3)) is not None


def test_an_id_stays_with_the_live_worker_that_has_it(table: Membership) -> None:
    table.register(register("d", 2, pid=41), 0.0)
    for number in range(1, 20):
        assert table.register(register("d", 3), number * 1.0).outgoing == ()
        table.heartbeat(Heartbeat("d", 2, STATS), number * 1.0)
        assert table.expire(number * 1.0) == Change()
    assert table.find(WorkerKey("d", 2)) is not None


@pytest.mark.parametrize("fields", [{"role": Role.PREFILL}, {"host": "other"}])
def test_who_cannot_be_the_same_worker_is_refused_its_id(table: Membership, fields: dict[str, Any]) -> None:
    table.register(register("d", 2, pid=41), 0.0)
    change = table.register(register("d", 3, **fields), 0.5)
    assert messages(change) == [Refused("worker id 'd' is taken by a live decode worker (pid 41 on host)")]
    assert change.lost == () and table.find(WorkerKey("d", 2)) is not None


def test_a_bounded_number_of_losses_is_remembered_and_all_are_counted(table: Membership) -> None:
    for instance in range(1, MOST_LOSSES + 3):
        table.register(register("d", instance), 0.0)
        table.give_up(WorkerKey("d", instance), "has left")
    assert table.num_lost == MOST_LOSSES + 2
    forgotten, known = (messages(table.heartbeat(Heartbeat("d", each, STATS), 0.0))[0] for each in (2, 3))
    assert isinstance(forgotten, RegisterAgain) and isinstance(known, DeclaredLost)
    assert WorkerKey("d", 2) not in table.losses and table.losses[WorkerKey("d", 3)].last_seen == 0.0


def test_who_was_told_of_its_loss_is_remembered_as_long_as_the_loss(table: Membership) -> None:
    def beat(instance: int) -> bool:
        return table.heartbeat(Heartbeat("d", instance, STATS), 0.0).is_repeated

    for instance in range(1, MOST_LOSSES + 3):
        table.register(register("d", instance), 0.0)
        table.give_up(WorkerKey("d", instance), "has left")
        assert [beat(instance), beat(instance)] == [False, True]
    assert not beat(1), "its loss is forgotten"
    assert beat(MOST_LOSSES) and len(table._told_lost) == MOST_LOSSES


def test_an_unknown_worker_is_asked_to_register(table: Membership) -> None:
    assert messages(table.heartbeat(Heartbeat("d", 5, STATS), 0.0)) == [RegisterAgain(77)]
