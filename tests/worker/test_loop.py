"""A worker that has served for long joins a gateway that was started again."""

import logging
from typing import Any

import pytest
import zmq

from protocol.errors import Unavailable
from protocol.messages_gateway import (
    GatewayLeft,
    Heartbeat,
    Left,
    Register,
    RegisterAgain,
    RequestFailed,
    ToGateway,
    Welcome,
)
from tests.worker.conftest import Bench, Welcoming
from worker.gateway_link import JOIN_DEADLINE_S
from worker.loop import HEARTBEAT_S, IDLE_POLL_S
from worker.parts import WorkerBroken


def test_a_gateway_that_restarts_after_long_service_learns_the_worker_again(context: Any) -> None:
    def on_beat(bench: Bench, _beat: Heartbeat) -> None:
        if gateway.num_beats == 1:
            bench.clock.advance(10 * JOIN_DEADLINE_S)  # it has served for long
            gateway.answers = [Welcome(2)]
            bench.send(RegisterAgain(2))
        elif len(gateway.numbers) == 2:
            bench.stop()

    gateway = Welcoming(on_beat)
    bench = Bench(context, gateway)
    bench.loop.run()
    assert isinstance(gateway.seen[0], Register) and len(gateway.numbers) == 2
    assert bench.core.num_resets == 1
    assert bench.core.kv_manager._flushes == 1, (
        "the new gateway may have flushed all caches before this worker joined it"
    )
    assert bench.peers.calls[:2] == ["flush", "forget_all"], "cancels leave, then connections are given up"
    assert bench.peers.calls.count("forget_all") == 1
    last: list[ToGateway] = []
    while not last or not isinstance(last[-1], Left):
        assert bench.router.socket.poll(60_000), "it tells that it has left"
        last += bench.heard()
    bench.close()


def test_a_connection_to_the_gateway_that_is_lost_and_made_again_is_said_once_each(
    context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    turns_lost = 0

    def said() -> list[tuple[str, str]]:
        return [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if "connection to" in record.getMessage()
        ]

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        nonlocal turns_lost
        bench.clock.advance(0.05)
        assert bench.clock.now() < 100, said()
        if any(isinstance(message, Register) for message in arrived):
            bench.send(Welcome(1))
        elif arrived and not bench.endpoint:  # a heartbeat of a member
            bench.lose_connection()
        elif len(said()) == 1:
            turns_lost += 1
            if turns_lost == 20:  # four beats: it is not said again
                bench.connect_again()
        elif len(said()) > 1:
            bench.stop()

    Bench(context, play).served()
    lost, back = "the connection to the gateway is lost", "the connection to the gateway is back"
    assert said() == [("WARNING", lost), ("INFO", back)]


@pytest.mark.parametrize("is_last", (True, False))
def test_a_gateway_that_has_said_that_it_ends_is_no_lost_connection(
    is_last: bool, context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its last message and the end of its connection may come in one turn. The next gateway may break again."""
    caplog.set_level(logging.INFO)
    turns_left, is_back = 0, False

    def said() -> list[tuple[str, str]]:
        return [
            (record.levelname, record.getMessage()) for record in caplog.records if "gateway" in record.getMessage()
        ]

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        nonlocal turns_left, is_back
        bench.clock.advance(0.05)
        assert bench.clock.now() < 100, said()
        if any(isinstance(message, Register) for message in arrived):
            bench.send(Welcome(1))
        elif arrived and not bench.endpoint:  # a heartbeat of a member
            bench.send(GatewayLeft())
            bench.lose_connection(linger_ms=1000)
        elif len(said()) == 1 and not is_last:
            turns_left += 1
            if turns_left == 20:
                bench.connect_again()
        elif len(said()) == 2 and arrived and not is_back:
            bench.send(RegisterAgain(1))
            is_back = True
        elif is_back and len(said()) == 2 and arrived:
            bench.lose_connection(linger_ms=1000)
        elif len(said()) == (1 if is_last else 3):
            bench.stop()

    Bench(context, play).served()
    expected = [("INFO", "the gateway has left")]
    if not is_last:
        expected += [("INFO", "the connection to the gateway is back")]
        expected += [("WARNING", "the connection to the gateway is lost")]
    assert said() == expected


def test_the_same_gateway_may_welcome_and_ask_again_and_nothing_is_reset(context: Any) -> None:
    def on_beat(bench: Bench, _beat: Heartbeat) -> None:
        if gateway.num_beats == 1:  # two beats may come at once
            bench.send(RegisterAgain(1))
        elif len(gateway.numbers) == 2:
            bench.stop()

    gateway = Welcoming(on_beat, Welcome(1), Welcome(1))  # as at each of its looks
    bench = Bench(context, gateway).served()
    assert len(gateway.numbers) == 2 and bench.num_ready == 2
    assert bench.core.num_resets == 0 and bench.core.kv_manager._flushes == 0 and bench.peers.calls == []


def test_another_gateway_that_welcomes_at_once_is_joined_once(context: Any) -> None:
    """It has got a Register that was meant for the one before, and welcomes its members at each look."""
    num_resets: list[int] = []  # by heartbeat

    def on_beat(bench: Bench, _beat: Heartbeat) -> None:
        num_resets.append(bench.core.num_resets)
        bench.send(Welcome(2))
        if sum(num_resets) >= 4:
            bench.stop()

    bench = Bench(context, Welcoming(on_beat)).served()
    assert bench.core.num_resets == 1 and bench.peers.calls.count("forget_all") == 1
    assert bench.core.kv_manager._flushes == 1, "what was cached under the gateway before is kept"


@pytest.mark.parametrize(
    "device, is_busy, spins", [("cuda:1", True, True), ("cuda:1", False, False), ("cpu", True, False)]
)
def test_a_busy_worker_polls_without_waiting_if_its_device_cannot_wake_it(
    device: str, is_busy: bool, spins: bool, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[int] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        if len(timeouts) == 4:
            bench.stop()

    bench = Bench(context, play, device)
    bench.core.busy = is_busy
    monkeypatch.setattr(bench.loop, "_poll", timeouts.append)
    bench.loop.run()
    bench.close()
    wanted = 0 if spins else 1000 * (IDLE_POLL_S if is_busy else HEARTBEAT_S)
    assert timeouts[1:] == [wanted] * 3, f"milliseconds that it waits on {device} while its core is busy: {is_busy}"


@pytest.mark.parametrize("holds_pages", [True, False])
def test_a_worker_without_pages_sleeps_until_its_next_heartbeat(
    holds_pages: bool, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside pages a transport may have news that no socket tells."""
    timeouts: list[int] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        if len(timeouts) == 3:
            bench.stop()

    bench = Bench(context, play)
    if holds_pages:
        assert bench.core.kv_manager.admit(64, 64, 1)
    monkeypatch.setattr(bench.loop, "_poll", timeouts.append)
    bench.loop.run()
    bench.close()
    assert timeouts[1:] == [1000 * (IDLE_POLL_S if holds_pages else HEARTBEAT_S)] * 2


def test_a_gateway_that_never_answers_is_given_up(context: Any) -> None:
    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        bench.clock.advance(JOIN_DEADLINE_S / 4)

    bench = Bench(context, play)
    with pytest.raises(Unavailable, match=r"no gateway has answered at tcp:.* in 60 s"):
        bench.loop.run()
    bench.close()
    assert bench.num_ready == 0


def test_a_broken_worker_tells_what_has_failed_and_leaves_before_it_ends(context: Any) -> None:
    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        bench.clock.advance(0.05)
        if any(isinstance(message, Register) for message in arrived):
            bench.send(Welcome(1))
        if any(isinstance(message, Heartbeat) for message in arrived):
            bench.core.outbox.gateway.append(RequestFailed("r", 0, "launch_failed", "broken kernel"))
            bench.core.loop.broken = "3 launches in a row have failed"

    bench = Bench(context, play)
    with pytest.raises(WorkerBroken, match="3 launches in a row have failed"):
        bench.loop.run()
    assert bench.router.socket.poll(120_000)
    said: list[ToGateway] = []
    while not said or not isinstance(said[-1], Left):
        said += bench.heard()
    bench.close()
    assert said[-2:] == [RequestFailed("r", 0, "launch_failed", "broken kernel"), Left("unified-0", 5)]


def test_heartbeats_tell_the_age_of_the_oldest_launch(context: Any) -> None:
    oldest = iter([4, 4, 4, 5, 5, 0, 0])  # its ticket, each for a second
    ages: list[float] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        beats = [message for message in arrived if isinstance(message, Heartbeat)]
        if any(isinstance(message, Register) for message in arrived):
            bench.send(Welcome(1))
            bench.clock.advance(1.0)
        elif beats:
            ages.append(beats[-1].launch_age_s)
            ticket = next(oldest, None)
            if ticket is None:
                bench.stop()
                return
            bench.core.loop.oldest_launch = ticket
            bench.clock.advance(1.0)

    Bench(context, play).served()
    assert ages == [0.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 0.0]


def test_a_failed_request_is_a_warning_unless_too_many_waited(context: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    codes = ("launch_failed", "queue_full", "prefill_queue_full")

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        bench.core.outbox.gateway += [RequestFailed("r", 0, code, "why") for code in codes]
        bench.core.loop.broken = "it is enough"

    bench = Bench(context, play)
    with pytest.raises(WorkerBroken, match="it is enough"):
        bench.loop.run()
    bench.close()
    told = {
        (fields_of(record)["code"], record.levelname) for record in caplog.records if record.msg == "request failed"
    }
    assert told == {("launch_failed", "WARNING"), ("queue_full", "INFO"), ("prefill_queue_full", "INFO")}


def test_a_refused_connection_is_told_once_and_is_the_reason_in_the_end(
    context: "zmq.Context[zmq.Socket[bytes]]", caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        bench.clock.advance(2.0)

    bench = Bench(context, play)
    monkeypatch.setattr(bench.loop, "_poll", lambda _: None)  # nothing ever comes
    refusals = iter(["", "key", "", "key", ""])
    bench._dealer.tend = lambda now: next(refusals, "")  # type: ignore[method-assign]
    bench.loop.gateway.refusal_means = {"key": "its list lacks the key"}
    bench.loop.gateway.silence_may_mean = "anything"
    with pytest.raises(Unavailable, match=r"in 60 s \(its list lacks the key\)"):
        bench.loop.run()
    bench.close()
    told = [(record.levelname, record.getMessage(), fields_of(record).get("why")) for record in caplog.records]
    assert told == [("ERROR", "the gateway refuses this worker", "its list lacks the key")]


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = record.__dict__["baton_fields"]
    return fields
