"""Ranks of one group are admitted together and lost together: each row of the table in membership.py."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.groups import ASKS_WITHIN_S, MOST_GROUPS
from gateway.routing.members import Change, Member, WorkerKey
from gateway.routing.membership import MOST_LOSSES, Membership
from protocol.fingerprint import Fingerprint, WeightsPrint
from protocol.messages_gateway import Heartbeat, PeerLost, Refused, Register, RegisterAgain, Role, Welcome
from protocol.messages_group import GroupPlace
from tests.gateway.worker_ends import MODEL, STATS, register

SIZE = 3


@pytest.fixture
def table() -> Membership:
    return Membership(77)


def instance_of(epoch: int, rank: int) -> int:
    return 100 * epoch + rank


def rank(number: int, epoch: int = 1, size: int = SIZE, group: str = "g", **fields: Any) -> Register:
    place = GroupPlace(group, epoch, number, size)
    base = register(f"{group}.{number}", instance_of(epoch, number), place=place, pid=instance_of(epoch, number))
    return replace(base, **fields)


def key(message: Register) -> WorkerKey:
    return WorkerKey.named_in(message.address)


def ids(members: tuple[Member, ...]) -> list[str]:
    return [member.key.worker_id for member in members]


def admit(table: Membership, epoch: int = 1, **fields: Any) -> Change:
    """All ranks of an epoch register. The last answer."""
    changes = [table.register(rank(number, epoch, **fields), 0.0) for number in range(SIZE)]
    assert all(change.joined == () and change.outgoing == () for change in changes[:-1])
    return changes[-1]


def reason(change: Change) -> str:
    [(_, message)] = change.outgoing
    assert isinstance(message, Refused)
    return message.reason


# ---- it gathers ----


def test_ranks_wait_for_the_last_one_and_are_admitted_together(table: Membership) -> None:
    first = table.register(rank(2), 0.0, session=4)
    assert first == Change(gathering="1 of 3 ranks of group 'g' have registered in epoch 1")
    assert table.register(rank(0), 0.1).gathering.startswith("2 of 3")
    assert table.members == () and table.missing == "no worker is ready yet"

    whole = table.register(rank(1), 0.2)
    assert list(whole.outgoing) == [(key(rank(number)), Welcome(77)) for number in range(SIZE)]
    assert ids(whole.joined) == ids(table.members) == ["g.0", "g.1", "g.2"]
    assert [(member.session, member.last_seen) for member in whole.joined] == [(1, 0.2), (1, 0.2), (4, 0.2)]


def test_a_rank_that_asks_again_waits_on_and_is_told_of_once(table: Membership) -> None:
    assert table.register(rank(0), 0.0).gathering
    assert table.register(rank(0), 1.0, session=2) == Change()
    assert table.greet_stranger(key(rank(0))).outgoing == ((key(rank(0)), RegisterAgain(77)),)
    assert table.register(rank(0), 1.1, session=3) == Change()
    table.register(rank(1), 1.1)
    assert [member.session for member in table.register(rank(2), 1.2).joined] == [3, 1, 1]


def test_a_rank_that_is_to_register_again_has_not_registered(table: Membership) -> None:
    """Its session is over: nothing could be said to it."""
    table.register(rank(0), 0.0)
    table.greet_stranger(key(rank(0)))
    table.register(rank(1), 0.0)
    assert table.register(rank(2), 0.0).joined == ()
    assert ids(table.register(rank(0), 0.1, session=2).joined) == ["g.0", "g.1", "g.2"]


@pytest.mark.parametrize("goes", ["leaves", "asks no more"])
def test_a_rank_that_goes_before_the_others_come_waits_no_longer(table: Membership, goes: str) -> None:
    table.register(rank(0), 0.0)
    table.register(rank(1), ASKS_WITHIN_S - 0.1)
    if goes == "leaves":
        assert table.give_up(key(rank(0)), "has left") == Change()
    else:
        assert table.expire(ASKS_WITHIN_S) == Change()
    assert table.register(rank(2), ASKS_WITHIN_S).joined == ()
    assert ids(table.register(rank(0), ASKS_WITHIN_S).joined) == ["g.0", "g.1", "g.2"], "the others have waited on"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"place": GroupPlace("g", 1, 1, 4)}, "size of the group is 4 on g.1, 3 on g.0"),
        ({"role": Role.UNIFIED}, "role is unified on g.1, decode on g.0"),
        ({"host": "other"}, "host is other on g.1, host on g.0"),
        ({"fingerprint": Fingerprint("model-b")}, "model fingerprint is model-b on g.1, model-a on g.0"),
        (
            {"fingerprint": replace(MODEL, draft=WeightsPrint("e", facts={"algorithm": "eagle"}))},
            "--speculative-algorithm is eagle on g.1, none on g.0",
        ),
        ({"vocab_size": 301}, "vocabulary size is 301 on g.1, 300 on g.0"),
        (
            {"place": GroupPlace("g", 1, 3, 3)},
            "rank of g.1 is 3, expected less than the size of its group, 3",
        ),
        ({"place": GroupPlace("g", 1, 2, 3)}, "worker id of rank 2 of group 'g' is g.1, expected g.2"),
    ],
)
def test_a_rank_that_differs_is_refused_and_all_others_hear_why(
    table: Membership, fields: dict[str, Any], says: str
) -> None:
    table.register(rank(0), 0.0)
    assert reason(table.register(rank(1, **fields), 0.1)) == says
    over = f"epoch 1 of group 'g' is over: {says}"
    assert reason(table.greet_stranger(key(rank(0)))) == f"{over}; this instance may not return"
    assert reason(table.register(rank(0), 1.0)) == f"{over}; this instance may not return"
    assert reason(table.register(rank(2), 1.0)) == over, "one that comes later hears it too"
    assert table.members == () and table.num_lost == 0
    assert len(admit(table, epoch=2).joined) == SIZE


def test_a_rank_that_differs_from_a_worker_that_serves_ends_the_epoch_too(table: Membership) -> None:
    table.register(rank(0), 0.0)
    table.register(register("p", 1, Role.PREFILL, vocab_size=301), 0.0)
    says = "vocabulary size is 300 on g.1, 301 on p"
    assert reason(table.register(rank(1), 0.1)) == says
    assert says in reason(table.register(rank(0), 1.0))


def test_two_processes_cannot_be_one_rank(table: Membership) -> None:
    table.register(rank(0), 0.0)
    twin = rank(0, address=register("g.0", 5).address, pid=5)
    assert reason(table.register(twin, 0.0)) == "two processes are g.0 in epoch 1: pids 100 and 5"
    assert "two processes" in reason(table.register(rank(0), 1.0))


def test_a_newer_epoch_ends_the_one_that_gathers(table: Membership) -> None:
    table.register(rank(0), 0.0)
    table.register(rank(0, epoch=3), 0.1)
    over = "epoch 1 of group 'g' is over: epoch 3 has begun"
    assert reason(table.register(rank(0), 1.0)) == f"{over}; this instance may not return"
    for old in (1, 2):
        assert reason(table.register(rank(1, epoch=old), 1.0)) == over.replace("1", str(old), 1)
    table.register(rank(1, epoch=3), 1.0)
    assert len(table.register(rank(2, epoch=3), 1.0).joined) == SIZE


# ---- it serves ----


def test_a_member_is_welcome_again_alone(table: Membership) -> None:
    admit(table)
    again = table.register(rank(1), 1.0)
    assert again == Change(((key(rank(1)), Welcome(77)),))
    assert [member.last_seen for member in table.members] == [0.0, 1.0, 0.0]


def test_another_process_is_no_rank_of_a_group_that_serves(table: Membership) -> None:
    admit(table, epoch=2)
    twin = rank(1, epoch=2, address=register("g.1", 5).address)
    assert reason(table.register(twin, 0.1)) == "worker id 'g.1' is taken by a live decode worker (pid 201 on host)"
    larger = rank(3, epoch=2, size=4)
    assert reason(table.register(larger, 0.1)) == "group 'g' is taken by a live decode worker (pid 200 on host)"
    assert reason(table.register(rank(0), 0.1)) == "epoch 1 of group 'g' is over: epoch 2 has begun"
    assert len(table.members) == SIZE and table.register(rank(1, epoch=2), 0.2).outgoing


@pytest.mark.parametrize("how", ["silence", "launch", "left", "connection"])
def test_with_one_rank_all_are_lost_and_peers_hear_of_each(table: Membership, how: str) -> None:
    admit(table)
    table.register(register("p", 9, Role.PREFILL), 0.0)
    others = [key(rank(0)), key(rank(2)), WorkerKey("p", 9)]
    for each in others:
        table.heartbeat(Heartbeat(each.worker_id, each.instance, STATS), 1.5)
    victim = key(rank(1))
    if how == "silence":
        change, why = table.expire(2.0), "was silent for 2.0 s"
    elif how == "launch":
        table.heartbeat(Heartbeat(victim.worker_id, victim.instance, STATS, 120.0), 1.5)
        change, why = table.expire(2.0), "made no progress in a launch for 120.0 s"
    else:
        why = "has left" if how == "left" else "has dropped its connection"
        change = table.give_up(victim, why)

    assert ids(change.lost) == ["g.0", "g.1", "g.2"] and ids(table.members) == ["p"] and table.num_lost == SIZE
    news = [PeerLost(f"g.{number}", instance_of(1, number)) for number in range(SIZE)]
    assert list(change.outgoing) == [(WorkerKey("p", 9), each) for each in news]
    why = f"worker 'g.1' {why}"
    assert table.losses[victim].answer == Refused(f"{why}; this instance may not return")
    told = f"its group has lost a rank: {why}; this instance may not return"
    for other in others[:2]:
        assert table.losses[other].answer == Refused(told)
        assert reason(table.heartbeat(Heartbeat(other.worker_id, other.instance, STATS), 2.1)) == told


def test_ranks_that_fall_silent_together_are_lost_once(table: Membership) -> None:
    admit(table)
    assert ids(table.expire(9.0).lost) == ["g.0", "g.1", "g.2"] and table.num_lost == SIZE
    assert table.expire(9.0) == Change()


def test_other_groups_and_workers_stay(table: Membership) -> None:
    admit(table)
    admit(table, group="h")
    table.register(register("g", 1), 0.0)
    table.give_up(key(rank(2)), "has left")
    assert ids(table.members) == ["g", "h.0", "h.1", "h.2"]


def test_a_newer_epoch_is_kept_waiting_while_the_old_one_serves(table: Membership) -> None:
    admit(table)
    waits = table.register(rank(2, epoch=2), 0.1)
    assert waits.outgoing == () and waits.joined == ()
    assert waits.kept_waiting == (
        "worker id 'g.2' is taken by a live decode worker (pid 102 on host); pid 202 may join when that one is gone"
    )
    assert table.register(rank(2, epoch=2), 1.1) == Change()  # said once
    larger = table.register(rank(3, epoch=2, size=4), 0.1)
    assert larger.kept_waiting.startswith("group 'g' is taken by a live decode worker (pid 100 on host)")
    table.give_up(key(rank(0)), "has left")
    assert ids(admit(table, epoch=2).joined) == ["g.0", "g.1", "g.2"]


@pytest.mark.parametrize("fields", [{"role": Role.PREFILL}, {"host": "other"}])
def test_a_newer_epoch_of_another_kind_is_refused(table: Membership, fields: dict[str, Any]) -> None:
    admit(table)
    says = reason(table.register(rank(0, epoch=2, **fields), 0.1))
    assert says.startswith("worker id 'g.0' is taken by a live")
    for number in (1, 2):
        assert reason(table.register(rank(number, epoch=2), 0.1)) == f"epoch 2 of group 'g' is over: {says}"
    assert len(table.members) == SIZE and table.register(rank(1), 0.2).outgoing == ((key(rank(1)), Welcome(77)),)


def test_a_group_starts_again_although_another_command_with_its_name_was_refused(table: Membership) -> None:
    """That command's epochs are larger, because it began later."""
    admit(table, epoch=10)
    other = [rank(number, epoch=900, host="another") for number in range(SIZE)]
    assert reason(table.register(other[0], 0.1)).startswith("worker id 'g.0' is taken by a live")
    table.give_up(key(rank(1, epoch=10)), "has left")
    assert "has left" in reason(table.register(rank(0, epoch=10), 0.1)), "which ends no other epoch"
    assert reason(table.register(other[1], 0.2)).startswith("epoch 900 of group 'g' is over")
    assert len(admit(table, epoch=11).joined) == SIZE


# ---- it is over ----


def test_no_rank_of_a_lost_epoch_or_an_older_one_is_admitted(table: Membership) -> None:
    admit(table, epoch=5)
    table.give_up(key(rank(1, epoch=5)), "has left")
    for number in range(SIZE):
        assert "worker 'g.1' has left; this instance may not return" in reason(table.register(rank(number, epoch=5), 1))
        fresh = rank(number, epoch=5, address=register(f"g.{number}", 7 + number).address)
        assert reason(table.register(fresh, 1.0)) == "epoch 5 of group 'g' is over: worker 'g.1' has left"
        old = reason(table.register(rank(number, epoch=4), 1.0))
        assert old == "epoch 4 of group 'g' is over: worker 'g.1' has left"
    assert table.members == ()
    assert len(admit(table, epoch=6).joined) == SIZE


def test_a_worker_of_its_own_keeps_the_id_of_a_rank(table: Membership) -> None:
    table.register(rank(0), 0.0)
    table.register(rank(1), 0.0)
    table.register(register("g.0", 4, pid=41), 0.0)
    assert table.register(rank(2), 0.0).joined == (), "its first rank cannot join"
    assert table.register(rank(0), 1.0) == Change() and [member.registered.pid for member in table.members] == [41]
    table.give_up(WorkerKey("g.0", 4), "has left")
    assert ids(table.register(rank(0), 2.0).joined) == ["g.0", "g.1", "g.2"]


def test_what_is_remembered_of_groups_is_bounded(table: Membership) -> None:
    for number in range(MOST_GROUPS + 2):
        table.register(rank(0, size=2, epoch=2, group=f"g{number}"), 0.0)
        table.register(rank(2, size=2, group=f"refused{number}"), 0.0)
    assert len(table._groups._over) == len(table._groups._refused) == MOST_GROUPS
    assert len(table._kept_waiting) == MOST_LOSSES
    table.expire(ASKS_WITHIN_S)
    assert table._groups._waiting == {}


# ---- in any order ----

GROUPS = {"g": 2, "h": 3}
EVENT = st.tuples(
    st.sampled_from(["register", "register", "register", "register", "leave", "beat", "again", "tick", "stray"]),
    st.sampled_from(sorted(GROUPS)),
    st.integers(1, 3),
    st.integers(0, 2),
    st.floats(0.0, 1.5),
)


@given(st.lists(EVENT, max_size=60))
def test_in_whatever_order_they_come_and_go_the_members_are_whole_groups(
    events: list[tuple[str, str, int, int, float]],
) -> None:
    table, now = Membership(77), 0.0
    newest_lost = dict.fromkeys(GROUPS, 0)
    num_joined = num_lost = 0
    for what, group, epoch, number, passed_s in events:
        now += passed_s
        size = GROUPS[group]
        message = rank(number % size, epoch, size, group)
        process = key(message)
        if what == "register":
            change = table.register(message, now)
        elif what == "stray":
            change = table.register(rank(number % size, epoch, size + 1, group), now)
        elif what == "leave":
            change = table.give_up(process, "has left")
        elif what == "beat":
            change = table.heartbeat(Heartbeat(process.worker_id, process.instance, STATS), now)
        elif what == "again":
            change = table.greet_stranger(process) if table.find(process) is None else Change()
        else:
            change = table.expire(now)

        num_joined, num_lost = num_joined + len(change.joined), num_lost + len(change.lost)
        for member in change.joined:
            place = member.registered.place
            assert place is not None and place.epoch > newest_lost[place.group]
        for member in change.lost:
            place = member.registered.place
            assert place is not None
            newest_lost[place.group] = max(newest_lost[place.group], place.epoch)
            assert table.losses[member.key].last_seen <= now

        for name in GROUPS:
            places = [each.place for each in table.members if each.place is not None and each.place.group == name]
            assert not places or [place.rank for place in places] == list(range(places[0].size))
            assert len({(place.epoch, place.size) for place in places}) <= 1
        assert len(table.members) == num_joined - num_lost and table.num_lost == num_lost
        assert not {member.key for member in table.members} & set(table.losses)
        told = [to for to, message in change.outgoing if isinstance(message, PeerLost)]
        assert all(table.find(to) is not None for to in told)
