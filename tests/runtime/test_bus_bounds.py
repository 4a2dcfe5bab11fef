from typing import Any

import pytest
import zmq

from runtime.bus import MAX_RECEIVE, RECEIVE_BYTES, Dealer, Router


class Flood:
    """A socket from which there is always more to take."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.num_taken = 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        assert flags == zmq.NOBLOCK
        self.num_taken += 1
        return self.parts


@pytest.mark.parametrize(
    "size, expected", [(0, MAX_RECEIVE), (10, MAX_RECEIVE), (2**20, RECEIVE_BYTES // 2**20), (2**24, 1)]
)
def test_a_flood_is_taken_in_bounded_portions(size: int, expected: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router: Any = Router(context, "127.0.0.1")
    dealer: Any = Dealer(context, router.endpoint, b"x#1")
    router.close()
    dealer.close()
    context.term()
    router.socket, dealer.socket = Flood(b"x#1", bytes(size)), Flood(bytes(size))
    assert router.receive() == [(b"x#1", bytes(size))] * expected
    assert dealer.receive() == [bytes(size)] * expected
    assert router.socket.num_taken == dealer.socket.num_taken == expected
