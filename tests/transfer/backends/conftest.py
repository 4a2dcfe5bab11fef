"""Two ends over real sockets: a file of tests names its `NETWORK`."""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tests.transfer.contract import Pair
from tests.transfer.zmq_network import ZmqNetwork, ended


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[ZmqNetwork]:
    made = request.module.NETWORK()
    yield made
    assert ended(made.context)


@pytest.fixture
def pair(network: ZmqNetwork) -> Iterator[Pair]:
    made = Pair(network)
    yield made
    made.close()


@pytest.fixture
def stranger(network: ZmqNetwork, pair: Pair) -> Iterator["zmq.Socket[Any]"]:
    """A sender that is connected to the receiver and unknown to it."""
    push = network.context.socket(zmq.PUSH)
    push.setsockopt(zmq.LINGER, 0)
    push.connect(pair.receiver.address.removeprefix("nixl+"))
    yield push
    push.close(0)
