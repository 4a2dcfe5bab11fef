"""What becomes of a worker, and of its requests, when a message between it and the gateway is lost."""

import asyncio

import pytest

from gateway.routing.members import WorkerKey
from protocol.messages_gateway import Heartbeat, RegisterAgain, Role, Tokens
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting
from tests.gateway.pair_bench import STATS, PairBench
from tests.gateway.worker_ends import register


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


def test_a_register_that_is_not_the_first_message_of_its_session_is_asked_for_again() -> None:
    """The first is lost, or was meant for the gateway before this one, which may have answered it."""
    bench, late = PairBench(), WorkerKey("late", 5)
    bench.say(late.identity, Heartbeat("late", 5, STATS))
    bench.say(late.identity, register(late.worker_id, late.instance))
    again = RegisterAgain(bench.control.membership.gateway_instance)
    assert bench.sent == [(late.worker_id, again)] * 2 and bench.control.membership.find(late) is None
