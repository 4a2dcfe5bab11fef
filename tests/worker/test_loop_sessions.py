"""What a worker does about its session with the gateway."""

from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.messages_gateway import Heartbeat, Register, RegisterAgain, ToGateway, Welcome
from tests.worker.conftest import IDENTITY, Bench
from worker.gateway_link import JOIN_DEADLINE_S


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_worker_of_which_a_message_was_lost_or_could_not_be_read_registers_in_another_session(
    context: Any, is_sent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    epochs: list[int] = []
    num_beats = 0

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        nonlocal num_beats
        bench.advance_if_member()
        for message in arrived:
            if isinstance(message, Register):
                epochs.append(bench.session.epoch)
                bench.send(Welcome(1))
                if len(epochs) == 2:
                    bench.stop()
            elif isinstance(message, Heartbeat) and (num_beats := num_beats + 1) == 1:
                raw = bench.session.seal(b"nonsense")
                assert not is_sent or bench.router.send(IDENTITY, raw)
                assert bench.router.send(IDENTITY, bench.session.tick())

    bench = Bench(context, play)
    bench.loop.run()
    bench.close()
    assert epochs == [1, 2] and bench.core.num_resets == 0, "it is for the gateway to say what becomes of it"
    assert "the session with the gateway is lost" in caplog.messages


def test_a_second_request_to_register_for_the_same_session_begins_no_other(context: Any) -> None:
    """A new gateway answers each heartbeat that had waited for it."""
    epochs: list[int] = []
    num_beats = 0

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        nonlocal num_beats
        bench.advance_if_member()
        for message in arrived:
            if isinstance(message, Register):
                epochs.append(bench.session.epoch)
                bench.send(Welcome(len(epochs)))
            elif isinstance(message, Heartbeat):
                num_beats += 1
                if num_beats == 1:
                    bench.send(RegisterAgain(2))
                    bench.send(RegisterAgain(2))
                elif num_beats > 4 and len(epochs) > 1:
                    bench.stop()

    bench = Bench(context, play)
    bench.loop.run()
    bench.close()
    assert epochs == [1, 2] and bench.core.num_resets == 1


def test_a_worker_whose_id_stays_taken_is_given_up(context: Any) -> None:
    """The gateway leaves the first Register of a session unanswered, and asks for another session after the second."""
    epochs: list[int] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        for message in arrived:
            assert isinstance(message, Register)
            if bench.session.epoch in epochs:
                bench.send(RegisterAgain(1))
            else:
                bench.clock.advance(JOIN_DEADLINE_S / 6)
            epochs.append(bench.session.epoch)
        if len(epochs) > 30:
            bench.stop()

    bench = Bench(context, play)
    with pytest.raises(Unavailable, match="no gateway has answered"):
        bench.loop.run()
    bench.close()
    assert bench.num_ready == 0 and len(set(epochs)) > 1
