"""When the gateway looks at its workers, and whom it may blame then."""

import math

import pytest

from gateway.routing.members import WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.punctuality import LATE_S, LEAST_PAUSE_S, MOST_LATE, TICK_S, Punctuality
from protocol.messages_gateway import Heartbeat
from runtime.settings import GatewaySettings
from tests.gateway.worker_ends import STATS, register
from worker.loop import HEARTBEAT_S

LIMIT_S = GatewaySettings.silence_limit_s


def test_late_looks_blame_nobody_until_there_are_too_many_in_a_row() -> None:
    punctuality = Punctuality(100.0)
    assert punctuality.look(100.25) and punctuality.look(101.24)
    late = [punctuality.look(101.24 + number * LATE_S) for number in range(1, 2 * MOST_LATE + 1)]
    assert late == [*[False] * (MOST_LATE - 1), True] * 2
    assert not punctuality.look(200.0) and punctuality.look(200.25)
    assert not punctuality.look(300.0)


def test_a_look_comes_when_a_worker_has_been_silent_for_too_long() -> None:
    punctuality = Punctuality(100.0)
    assert punctuality.pause(100.0, math.inf) == punctuality.pause(100.0, 100.0 + TICK_S) == TICK_S
    assert punctuality.pause(100.0, 100.1) == pytest.approx(0.1 + LEAST_PAUSE_S)
    assert punctuality.pause(100.0, 100.0) == TICK_S, "who is past it was looked at"


def test_behind_a_late_look_nobody_is_looked_at_sooner_than_usual() -> None:
    punctuality = Punctuality(100.0)
    punctuality.look(100.0 + LATE_S)
    assert punctuality.pause(100.0 + LATE_S, 100.1 + LATE_S) == TICK_S
    punctuality.look(100.0 + LATE_S + TICK_S)
    assert punctuality.pause(100.0 + LATE_S + TICK_S, 100.1 + LATE_S + TICK_S) < TICK_S


@pytest.mark.parametrize("phase", range(10))
def test_a_link_that_is_cut_is_noticed_within_the_limit_and_not_before_seven_beats_are_missing(phase: int) -> None:
    """Wherever between two beats the cut is, and wherever between two looks the last beat comes."""
    table, now = Membership(77), 1000.0
    last_beat_at = now + phase * TICK_S / 10
    punctuality = Punctuality(now)
    table.register(register("d", 1), now)
    beats = [last_beat_at]
    while True:
        now += punctuality.pause(now, table.next_silent_at)
        while beats and beats[0] <= now:
            table.heartbeat(Heartbeat("d", 1, STATS), beats.pop(0))
        assert punctuality.look(now)
        if table.expire(now).lost:
            break
    assert table.find(WorkerKey("d", 1)) is None
    assert 7 * HEARTBEAT_S < now - last_beat_at < LIMIT_S - 0.05, "with some time left for a loop that is busy"
