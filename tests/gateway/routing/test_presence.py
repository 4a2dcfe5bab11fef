"""What the gateway tells of roles without a worker, and of workers that were started again."""

import pytest

from gateway.routing.members import Change, HowLost, WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.presence import Presence
from protocol.messages_gateway import Heartbeat, Role
from protocol.messages_group import GroupPlace
from tests.gateway.worker_ends import STATS, register

P, D, U = Role.PREFILL, Role.DECODE, Role.UNIFIED


class Stage:
    """A membership and what is noted of it, in time that the test gives."""

    def __init__(self) -> None:
        self.table = Membership(7)
        self.presence = Presence(100.0)

    def join(self, worker_id: str, role: Role, now: float, instance: int = 1, pid: int = 1) -> None:
        change = self.table.register(register(worker_id, instance, role, pid=pid), now)
        self.presence.note(self.table, change, now)

    def join_group(self, group: str, rank: int, size: int, now: float) -> None:
        place = GroupPlace(group, 1, rank, size)
        change = self.table.register(register(f"{group}.{rank}", 1, D, place=place), now)
        self.presence.note(self.table, change, now)

    def lose(self, worker_id: str, now: float, why: str = "has left", instance: int = 1) -> None:
        change = self.table.give_up(WorkerKey(worker_id, instance), why)
        assert change.lost
        self.presence.note(self.table, change, now)

    def health(self, now: float) -> str:
        missing = self.table.missing
        return "" if missing is None else self.presence.describe(missing, now)


def test_a_gateway_says_for_how_long_it_has_waited_for_its_first_workers() -> None:
    stage = Stage()
    assert stage.health(112.0) == "no worker is ready yet, so no request could be served for 12 s"
    stage.join("p", P, 112.0)
    assert stage.health(113.0) == "no decode worker is ready yet, so no request could be served for 13 s"
    stage.join("d", D, 114.0)
    assert stage.health(115.0) == ""


def test_a_loss_says_since_when_and_how_without_names() -> None:
    """The time is that without service: another loss meanwhile does not begin it anew."""
    stage = Stage()
    stage.join("p", P, 100.0)
    stage.join("d-host-17", D, 100.0)
    stage.lose("d-host-17", 120.0, "was silent for 1.9 s")
    assert stage.health(143.0) == (
        "no decode worker is ready, so no request could be served for 23 s; the worker lost last was silent for 1.9 s"
    )
    stage.lose("p", 130.0, "has dropped its connection")
    assert stage.health(143.0) == (
        "no worker is ready, so no request could be served for 23 s; the worker lost last has dropped its connection"
    )
    stage.join("u", U, 150.0)
    assert stage.health(151.0) == ""
    stage.lose("u", 160.0)
    assert "served for 2 s" in stage.health(162.0)


def test_a_second_worker_of_the_role_leaves_no_gap() -> None:
    stage = Stage()
    for worker_id, role in (("p", P), ("d0", D), ("d1", D)):
        stage.join(worker_id, role, 100.0)
    assert stage.presence.seconds_without(109.0) == {D: 0.0, P: 0.0}
    stage.lose("d0", 110.0)
    assert stage.health(115.0) == "" and stage.presence.seconds_without(115.0) == {D: 0.0, P: 0.0}
    stage.lose("d1", 120.0)
    assert stage.presence.seconds_without(125.0) == {D: 5.0, P: 0.0}
    stage.lose("p", 124.0)
    assert stage.presence.seconds_without(125.0) == {D: 5.0, P: 1.0}
    stage.join("d1", D, 130.0, instance=2)
    assert stage.presence.seconds_without(131.0) == {D: 0.0, P: 7.0}


def test_a_worker_that_leaves_gets_no_requests_any_more() -> None:
    stage = Stage()
    stage.join("u", U, 100.0)
    stage.table.leaving(WorkerKey("u", 1))
    stage.presence.note(stage.table, Change(), 110.0)
    assert stage.presence.seconds_without(112.0) == {U: 2.0} and "for 2 s" in stage.health(112.0)


def test_only_another_process_is_a_restart() -> None:
    """A process may return as another instance, and a new gateway begins to count."""
    stage = Stage()
    for instance, pid in enumerate((1, 2, 2, 3), start=1):
        stage.join("d", D, 100.0, instance, pid)
        stage.lose("d", 101.0, instance=instance)
    stage.join("p", P, 102.0)
    assert stage.presence.restarts == {"decode": 2, "prefill": 0, "unified": 0}


@pytest.mark.parametrize("how", HowLost)
def test_how_a_rank_was_lost_is_told_without_names_for_its_whole_group(how: HowLost) -> None:
    stage = Stage()
    for rank in range(2):
        stage.join_group("d", rank, 2, 100.0)
    change = stage.table.give_up(WorkerKey("d.0", 1), "is gone; so 'it' is", how)
    assert len(change.lost) == 2
    for member in change.lost:
        loss = stage.table.losses[member.key]
        assert (loss.how, loss.says) == (how, "is gone; so 'it' is") and "d.0" in loss.reason
    stage.presence.note(stage.table, change, 101.0)
    assert stage.health(103.0).endswith("; the worker lost last is gone; so 'it' is")


def test_how_a_worker_is_lost_by_itself() -> None:
    for how, says, silent in ((HowLost.SILENT, "was silent for 9.0 s", True), (HowLost.STUCK, "made no", False)):
        table = Membership(7, launch_deadline_s=30)
        table.register(register("d", 1), 0.0)
        if not silent:
            table.heartbeat(Heartbeat("d", 1, STATS, launch_age_s=30.0), 9.0)
        table.expire(9.0)
        loss = table.losses[WorkerKey("d", 1)]
        assert loss.how is how and loss.says.startswith(says)
