"""A flush is over when no worker can have KV from before it, in its cache or from another worker."""

from dataclasses import dataclass, field

import pytest

from gateway.routing.flushes import Flush, Flushes
from protocol.messages_gateway import Role


@dataclass
class Fleet:
    """Workers by their routing ids, and the flushes that each was asked for."""

    roles: dict[bytes, Role]
    asked: list[tuple[int, bytes]] = field(default_factory=list)

    def ask(self, number: int, roles: tuple[Role, ...]) -> list[bytes]:
        """See Flushes."""
        found = [identity for identity, role in self.roles.items() if role in roles]
        self.asked += [(number, identity) for identity in found]
        return found


@pytest.fixture
def fleet() -> Fleet:
    return Fleet({b"d": Role.DECODE, b"p": Role.PREFILL, b"q": Role.PREFILL, b"u": Role.UNIFIED})


@pytest.fixture
def flushes(fleet: Fleet) -> Flushes:
    return Flushes(fleet.ask)


def test_decode_workers_are_asked_when_every_prefill_worker_has_answered(fleet: Fleet, flushes: Flushes) -> None:
    flush = flushes.begin()
    assert fleet.asked == [(1, b"p"), (1, b"q")]
    flushes.answered(1, b"q")
    assert len(fleet.asked) == 2
    flushes.answered(1, b"p")
    assert fleet.asked[2:] == [(1, b"d"), (1, b"u")] and not flush.done.is_set()
    flushes.answered(1, b"d")
    assert flush.waiting == {b"u"} and not flush.done.is_set()
    flushes.answered(1, b"u")
    assert flush.done.is_set()


def test_a_decode_worker_that_joins_meanwhile_is_asked_too(fleet: Fleet, flushes: Flushes) -> None:
    flush = flushes.begin()
    fleet.roles[b"e"] = Role.DECODE
    for identity in (b"p", b"q", b"d", b"u"):
        flushes.answered(1, identity)
    assert (1, b"e") in fleet.asked and not flush.done.is_set()
    flushes.answered(1, b"e")
    assert flush.done.is_set()


def test_nobody_waits_for_a_worker_that_is_lost(fleet: Fleet, flushes: Flushes) -> None:
    first, second = flushes.begin(), flushes.begin()
    del fleet.roles[b"p"]
    flushes.left(b"p")
    for identity in (b"q", b"d", b"u"):
        flushes.answered(1, identity)
    assert first.done.is_set() and not second.done.is_set()
    assert second.waiting == {b"q"}


@pytest.mark.parametrize("roles", [{}, {b"u": Role.UNIFIED}, {b"d": Role.DECODE}])
def test_roles_that_nobody_has_are_passed_over(roles: dict[bytes, Role]) -> None:
    fleet = Fleet(roles)
    flush = Flushes(fleet.ask).begin()
    assert flush.done.is_set() == (not roles)
    assert [identity for _, identity in fleet.asked] == list(roles)


def test_answers_to_a_flush_that_was_given_up_are_ignored(fleet: Fleet, flushes: Flushes) -> None:
    flush: Flush = flushes.begin()
    flushes.end(flush)
    flushes.answered(1, b"p")
    flushes.left(b"q")
    assert flush.waiting == {b"p", b"q"} and not flush.done.is_set()
