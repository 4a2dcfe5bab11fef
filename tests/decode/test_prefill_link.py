"""Connections to prefill workers: dialled when there is something to say, given up when nobody tells of losses."""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from decode.prefill_link import PrefillLink
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import TO_PREFILL, CancelJob
from runtime.bus import Router
from tests.runtime.rebinding import bound_again
from worker.outbox import Outbox

CANCELS = tuple(CancelJob(f"r{index}", 0, index) for index in range(100))


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
    found: list[tuple[bytes, bytes]] = []
    while len(found) < count:
        assert router.socket.poll(30_000)
        found += router.receive()
    return [(identity, TO_PREFILL.decode(raw)) for identity, raw in found]


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
    for _ in range(1000):
        link.receive()
        if returned:
            break
        again.poll(10)
    link.receive()
    assert returned == [5]
    link.close()
    again.close(0)
