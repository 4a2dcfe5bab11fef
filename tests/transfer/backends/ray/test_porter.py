from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from transfer.backends.ray.porter import Porter

HEADER = np.frombuffer(b"header", np.uint8)
BODY = np.arange(200, dtype=np.uint8)


@pytest.fixture
def pull() -> "Iterator[zmq.Socket[Any]]":
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind("tcp://127.0.0.1:0")
        yield socket


@pytest.fixture
def porter(pull: "zmq.Socket[Any]") -> Iterator[Porter]:
    made = Porter(pull.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())  # type: ignore[union-attr]
    yield made
    made.close()


def test_frames_come_in_their_order_part_by_part(porter: Porter, pull: "zmq.Socket[Any]") -> None:
    assert porter.is_ready()
    porter.carry([[HEADER, BODY], [HEADER]])
    porter.carry([[BODY]])
    assert [pull.recv_multipart() for _ in range(3)] == [[b"header", BODY.tobytes()], [b"header"], [BODY.tobytes()]]


@pytest.mark.parametrize(
    "frame",
    [
        [],
        (HEADER,),
        "header",
        [b"header"],
        [HEADER, 5],
        [BODY.view(np.uint16)],
        [BODY.reshape(2, 100)],
        [BODY[::2]],
        [np.array([object()])],
    ],
)
def test_what_is_not_made_of_bytes_is_refused_and_nothing_of_its_parcel_goes_on(
    porter: Porter, pull: "zmq.Socket[Any]", frame: Any
) -> None:
    with pytest.raises(TypeError, match="expected a"):
        porter.carry([[BODY], frame])
    porter.carry([[HEADER]])
    assert pull.recv_multipart() == [b"header"]
