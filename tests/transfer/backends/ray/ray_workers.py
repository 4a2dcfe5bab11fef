"""Workers of a Ray cluster with one end of a transfer each, and a decode process to be killed: python ray_workers.py.

That one prints its data address and its pid, and waits. The cluster is the one that RAY_ADDRESS names.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import ray
import zmq

from protocol.messages_gateway import RankEndpoint, WorkerAddress
from tests.transfer.contract import DECODE, PREFILL
from tests.transfer.memory import LAYOUT, HostMemory
from transfer.backends.ray.backend import ray_receiver, ray_sender
from transfer.landing.transfer import CreditReturned, Delivered, ReceiverEvent
from transfer.sending.transfer import Destination

NUM_PAGES = 12


class PrefillEnd:
    """A sender in an actor."""

    def __init__(self) -> None:
        self.memory = HostMemory(LAYOUT, NUM_PAGES, seed=1)
        self.sender = ray_sender(self.memory, PREFILL)

    def send(self, address: str, reservation: int, pages: list[int], num_tokens: int) -> str:
        """Sends a prompt; the node on which that happens."""
        destination = Destination(WorkerAddress("d0", DECODE, ranks=(RankEndpoint(address),)), reservation, 0)
        self.sender.open(destination, pages, num_tokens)
        for layer in range(LAYOUT.num_layers):
            self.sender.layers_ready(destination, (layer,), num_tokens)
        self.sender.finish(destination, (5,))
        return node_of_this()

    def credit(self, events: list[ReceiverEvent]) -> float:
        """What decode's events give back; what is in flight then."""
        for event in events:
            if isinstance(event, CreditReturned):
                self.sender.add_credit(DECODE, event.reservation, event.num_bytes)
        return self.sender.counters["bytes_in_flight_now"]


class DecodeEnd:
    """A receiver in an actor."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.memory = HostMemory(LAYOUT, NUM_PAGES, seed=2)
        self.receiver = ray_receiver(self.memory, self.context)

    def reserve(self, reservation: int, pages: list[int], num_tokens: int) -> tuple[str, str, bytes]:
        """The data address, the node, and the pool as it is before."""
        self.receiver.reserve(reservation, 0, PREFILL, pages, num_tokens)
        return self.receiver.address, node_of_this(), bytes(self.memory.pool)

    def events(self) -> tuple[list[ReceiverEvent], bytes]:
        """What happens until all was delivered, and the pool then."""
        events: list[ReceiverEvent] = []
        while not any(isinstance(event, Delivered) for event in events):
            zmq.select(self.receiver.pollables(), [], [], timeout=1.0)
            events += self.receiver.poll()
        return events, bytes(self.memory.pool)


def node_of_this() -> str:
    """Of the actor that calls."""
    return str(ray.get_runtime_context().get_node_id())


if __name__ == "__main__":
    end = DecodeEnd()
    print(end.receiver.address, os.getpid(), flush=True)  # noqa: T201
    sys.stdin.read()
