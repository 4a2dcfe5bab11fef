import asyncio

import pytest

from gateway.continuity import LATE_S, MOST_BEATS, MOST_LATE, Continuity, Punctuality
from protocol.messages_gateway import Role, Tokens
from tests.gateway.conftest import Setting
from tests.gateway.fake_worker import Behaviour

ME = b"u0#1"


def joined(num_sent: int = 7, num_received: int = 3) -> Continuity:
    counts = Continuity()
    counts.begin(ME, num_sent, num_received)
    return counts


def test_what_arrives_is_counted() -> None:
    counts = joined()
    for num_sent in (8, 9, 10):
        counts.heard(ME)
        assert counts.gap(ME, num_sent, 3) is None
    for _ in range(3):
        counts.heard(ME)
    assert counts.gap(ME, 13, 3) is None
    counts.heard(ME)
    assert counts.gap(ME, 15, 3) == "has sent 15 messages, of which 14 arrived and could be read"


def test_what_is_sent_must_be_received_some_beats_later() -> None:
    counts = joined()
    num_sent = 7

    def beat(num_received: int) -> str | None:
        nonlocal num_sent
        num_sent += 1
        counts.look()
        counts.heard(ME)
        return counts.gap(ME, num_sent, num_received)

    assert [beat(3) for _ in range(2 * MOST_BEATS)] == [None] * 2 * MOST_BEATS, "nothing was sent yet"
    counts.told(ME)  # the fourth that it receives
    counts.told(ME)
    assert [beat(3) for _ in range(MOST_BEATS - 1)] == [None] * (MOST_BEATS - 1)
    assert [beat(4) for _ in range(MOST_BEATS)] == [None] * MOST_BEATS, (
        "the fourth has come, and nothing was sent since"
    )
    counts.told(ME)
    assert [beat(5) for _ in range(MOST_BEATS - 1)] == [None] * (MOST_BEATS - 1)
    assert beat(5) == "has received 5 messages of 6 that were sent to it"


def test_a_worker_that_has_missed_a_message_is_believed() -> None:
    counts = joined()
    assert counts.number(ME) == 4 and counts.number(b"other") is None
    counts.told(ME)
    assert counts.number(ME) == 5
    counts.heard(ME)
    assert counts.gap(ME, 8, 4, 0) is None
    counts.heard(ME)
    assert counts.gap(ME, 9, 4, 1) == "has missed 1 of the messages that were sent to it"


def test_a_worker_that_registers_again_before_it_was_welcomed_is_numbered_on() -> None:
    """A new gateway answers each heartbeat that had waited for it: the worker registers at the first, and again. It
    takes numbers that go back for messages that were lost."""
    counts = joined(7, 3)
    assert counts.number(ME) == 4
    counts.told(ME)  # Welcome, behind two answers that are not counted
    counts.heard(ME)
    counts.begin(ME, 8, 5)
    assert counts.number(ME) == 5
    counts.heard(ME)
    assert counts.gap(ME, 9, 7) is None


def test_heartbeats_that_waited_while_we_were_paused_blame_nobody() -> None:
    counts = joined()
    counts.told(ME)
    for num_sent in range(8, 8 + 3 * MOST_BEATS):  # sent long before that message, and all of them read now
        counts.heard(ME)
        assert counts.gap(ME, num_sent, 3) is None


def test_who_tells_no_counts_is_not_checked_and_who_has_gone_is_forgotten() -> None:
    counts = joined()
    assert counts.gap(ME, None, None) is None and counts.gap(b"other", 5, 5) is None
    counts.begin(b"other", None, None)
    counts.heard(b"other")
    assert counts.gap(b"other", 50, 50) is None
    counts.end(ME)
    assert counts.gap(ME, 50, 50) is None


def test_late_looks_blame_nobody_until_there_are_too_many_in_a_row() -> None:
    punctuality = Punctuality(100.0)
    assert punctuality.look(100.25) and punctuality.look(101.24)
    late = [punctuality.look(101.24 + number * LATE_S) for number in range(1, 2 * MOST_LATE + 1)]
    assert late == [*[False] * (MOST_LATE - 1), True] * 2
    assert not punctuality.look(200.0) and punctuality.look(200.25)
    assert not punctuality.look(300.0)


async def test_a_request_whose_tokens_were_lost_on_the_way_goes_on_elsewhere(setting: Setting) -> None:
    good = await setting.add(Role.UNIFIED, "u1")
    await setting.complete("x")  # whose turn is the first
    unlucky = await setting.add(Role.UNIFIED, "u2")
    unlucky.loses = lambda message: isinstance(message, Tokens) and message.choices[0].seq == 2
    answer = await setting.complete("x", max_tokens=6)
    assert unlucky.num_lost == 1
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 6
    assert good.assigned[-1].num_replayed == 2
    assert [member.key.worker_id for member in setting.gateway.control.membership.members] == ["u1"]


async def test_a_worker_that_says_what_cannot_be_read_is_lost_and_its_request_goes_on_elsewhere(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may wait for what it said."""
    good = await setting.add(Role.UNIFIED, "u1")
    await setting.complete("x")  # whose turn is the first
    garbler = await setting.add(Role.UNIFIED, "u2", behaviour=Behaviour(stop_after=2))
    asking = asyncio.create_task(setting.complete("x", max_tokens=6))
    await garbler.until(lambda: bool(garbler.assigned))
    await garbler.send_raw(b"\xff the third token")
    answer = await asking
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 6
    assert len(good.assigned) == 2
    assert [member.key.worker_id for member in setting.gateway.control.membership.members] == ["u1"]
    [lost] = [record for record in caplog.records if record.getMessage() == "worker lost"]
    assert "arrived and could be read" in lost.__dict__["baton_fields"]["why"]
