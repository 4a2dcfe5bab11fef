"""Connections to prefill workers: dialled when there is something to say, given up when nobody tells of losses."""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from decode.prefill_link import PrefillLink
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import TO_DECODE, TO_PREFILL, CancelJob, JobCredit
from runtime.bus import Router
from runtime.session import Envelope, Session, not_known, open_envelope
from tests.runtime.rebinding import bound_again
from worker.requests import Outbox

CANCELS = tuple(CancelJob(index) for index in range(100))


class NoReceiver:
    """Nothing lands."""

    def pollables(self) -> list[Any]:
        return []

    def close(self) -> None:
        return


@pytest.fixture
def context() -> Iterator[Any]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def hear(router: Router, count: int) -> list[tuple[bytes, Any]]:
    heard: list[tuple[bytes, bytes]] = []
    while len(heard) < count:
        assert router.socket.poll(120_000)
        heard += router.receive()
    return [(identity, TO_PREFILL.decode(open_envelope(raw).body)) for identity, raw in heard]


def test_a_new_gateway_costs_no_connection_and_no_cancel(context: Any) -> None:
    """What was queued before still leaves; who lives is dialled again; to the dead nothing stays open."""
    router, outbox = Router(context, "127.0.0.1"), Outbox()
    receiver: Any = NoReceiver()
    returned: list[int] = []
    link = PrefillLink(context, b"decode-0#7", receiver, outbox, lambda _instance, _message: None, returned.append)
    living, dead = (
        WorkerAddress("prefill-0", 1, peer=router.endpoint),
        WorkerAddress("prefill-1", 2, "tcp://127.0.0.1:1"),
    )
    outbox.prefill += [(living, CANCELS[0])]
    link.flush()
    assert hear(router, 1) == [(b"decode-0#7", CANCELS[0])]
    outbox.prefill += [*((living, cancel) for cancel in CANCELS[1:]), (dead, CANCELS[0])]
    link.flush()
    assert len(link.pollables()) == 2
    link.forget_all()
    assert link.pollables() == []
    assert [message for _, message in hear(router, 99)] == list(CANCELS[1:])
    outbox.prefill += [(living, CANCELS[0])]
    link.flush()
    assert len(link.pollables()) == 1
    assert hear(router, 1) == [(b"decode-0#7", CANCELS[0])]
    link.receive()
    assert returned == []  # each was a first connection
    link.close()
    router.close()


def test_a_connection_that_was_lost_and_made_again_is_told_once(context: Any) -> None:
    router, outbox = Router(context, "127.0.0.1"), Outbox()
    receiver: Any = NoReceiver()
    returned: list[int] = []
    link = PrefillLink(context, b"decode-0#7", receiver, outbox, lambda _instance, _message: None, returned.append)
    outbox.prefill += [(WorkerAddress("prefill-0", 5, peer=router.endpoint), CANCELS[0])]
    link.flush()
    hear(router, 1)
    link.receive()
    assert returned == []
    endpoint = router.endpoint
    router.close()
    again = bound_again(context, zmq.ROUTER, endpoint)
    for _ in range(12_000):
        link.receive()
        if returned:
            break
        again.poll(10)
    link.receive()
    assert returned == [5]
    link.close()
    again.close(0)


class Pair:
    """The link, and the ROUTER of a prefill worker."""

    def __init__(self, context: Any) -> None:
        self.router, self.outbox = Router(context, "127.0.0.1"), Outbox()
        self.heard: list[Any] = []
        self.lost: list[int] = []
        receiver: Any = NoReceiver()
        self.link = PrefillLink(
            context, b"d#7", receiver, self.outbox, lambda _instance, message: self.heard.append(message), self._lose
        )
        self.address = WorkerAddress("prefill-0", 5, peer=self.router.endpoint)

    def say(self, *messages: CancelJob) -> None:
        self.outbox.prefill += [(self.address, message) for message in messages]
        self.link.flush()

    def arrived(self, count: int) -> list[Envelope]:
        envelopes: list[Envelope] = []
        while len(envelopes) < count:
            assert self.router.socket.poll(120_000)
            envelopes += [open_envelope(raw) for _, raw in self.router.receive()]
        return envelopes

    def answer(self, *raws: bytes) -> None:
        """Prefill says this, and the link reads it."""
        for raw in raws:
            assert self.router.send(b"d#7", raw)
        (socket,) = self.link._dealers.values()
        assert socket.socket.poll(120_000)
        self.link.receive()

    def close(self) -> None:
        self.link.close()
        self.router.close()

    def _lose(self, instance: int) -> None:
        assert self.outbox.prefill == [], "what was to be said in the session is dropped with it"
        self.lost.append(instance)


CREDIT = TO_DECODE.encode(JobCredit(1))


@pytest.mark.parametrize(
    "raws",
    [
        (not_known(1),),
        (Envelope(1, 2, 1, CREDIT).sealed(),),
        (Envelope(1, 1, 9, CREDIT).sealed(),),
    ],
    ids=["not known at prefill", "a message is missing", "it answers somebody else"],
)
def test_a_session_that_is_lost_is_told_once_and_another_begins(context: Any, raws: tuple[bytes, ...]) -> None:
    pair = Pair(context)
    pair.say(CANCELS[0])
    assert pair.arrived(1) == [Envelope(1, 1, 0, TO_PREFILL.encode(CANCELS[0]))]
    pair.outbox.prefill.append((pair.address, CANCELS[1]))
    pair.answer(*raws, *raws)
    pair.say(CANCELS[2])
    assert pair.arrived(1) == [Envelope(2, 1, 0, TO_PREFILL.encode(CANCELS[2]))]
    assert pair.lost == [5]
    pair.close()


def test_what_cannot_be_read_is_refused_and_missed_with_the_next_message(context: Any) -> None:
    pair, prefill = Pair(context), Session(1)
    pair.say(CANCELS[0])
    pair.arrived(1)
    pair.answer(prefill.seal(b"nonsense"))
    assert pair.link.refusals.total == 1 and pair.lost == []
    pair.answer(prefill.seal(CREDIT))
    assert pair.heard == [] and pair.lost == [5]
    pair.close()


def test_numbers_are_said_until_everything_is_confirmed(context: Any) -> None:
    pair, prefill = Pair(context), Session(1)
    pair.say(CANCELS[0])
    pair.link.tick()
    message, numbers = pair.arrived(2)
    assert numbers == Envelope(1, 1, 0, b"")
    prefill.accept(message)
    pair.answer(prefill.seal(CREDIT))
    assert pair.heard == [JobCredit(1)]
    pair.link.tick()
    assert pair.arrived(1) == [Envelope(1, 1, 1, b"")]
    pair.link.tick()
    pair.say(CANCELS[1])
    assert [envelope.body for envelope in pair.arrived(1)] == [TO_PREFILL.encode(CANCELS[1])], "no numbers before it"
    pair.close()
