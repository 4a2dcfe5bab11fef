import weakref

import pytest

from scheduler.keep_alive import KeepAliveRing


class Thing:
    """Can be watched."""


def test_a_thing_lives_until_its_ticket_has_completed() -> None:
    ring = KeepAliveRing()
    things = [Thing(), Thing(), Thing()]
    watched = [weakref.ref(thing) for thing in things]
    for ticket, thing in enumerate(things, 1):
        ring.hold(ticket, thing)
    del thing
    things.clear()
    ring.release(0)
    assert len(ring) == 3
    ring.release(2)
    assert [ref() is None for ref in watched] == [True, True, False]
    ring.release(2)
    assert len(ring) == 1
    ring.release(3)
    assert watched[2]() is None


def test_tickets_come_in_order() -> None:
    ring = KeepAliveRing()
    ring.hold(2, "b")
    ring.hold(2, "c")
    with pytest.raises(AssertionError, match="in order"):
        ring.hold(1, "a")
