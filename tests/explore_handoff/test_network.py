"""The simulated network does what TCP under ZMQ does: or what is explored on it would be worth nothing."""

import random
from dataclasses import dataclass, field

import pytest
import zmq

from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.network import Network, Weather
from tests.explore_handoff.processes import Process
from tests.explore_handoff.sockets import SimulatedContext, SimulatedDealer, SimulatedRouter
from tests.explore_handoff.story import Story


@dataclass
class Bench:
    agenda: Agenda = field(default_factory=Agenda)
    story: Story = field(default_factory=Story)
    here: Process = field(default_factory=lambda: Process("decode-0#1"))
    there: Process = field(default_factory=lambda: Process("prefill-0#2"))

    def __post_init__(self) -> None:
        self.network = Network(self.agenda, self.story, Weather(random.Random(1), delay_s=0.01))
        self.agenda.after(1e9, lambda: None)  # so that there is always something to come
        self.context = SimulatedContext(self.network, self.here)
        router = SimulatedContext(self.network, self.there).socket(zmq.ROUTER)
        dealer = self.context.socket(zmq.DEALER)
        assert isinstance(dealer, SimulatedDealer) and isinstance(router, SimulatedRouter)
        self.dealer, self.router = dealer, router
        router.bind("tcp://127.0.0.1:0")
        dealer.setsockopt(zmq.ROUTING_ID, b"decode-0#1")
        dealer.connect(router.getsockopt(zmq.LAST_ENDPOINT).decode())

    def run(self, seconds: float) -> None:
        end = self.agenda.now + seconds
        self.agenda.at(end, lambda: None)
        while self.agenda.now < end:
            self.agenda.step()

    def heard(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            try:
                found.append(self.router.recv_multipart()[1])
            except zmq.Again:
                return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_messages_arrive_in_order_and_wait_for_a_connection(bench: Bench) -> None:
    sent = [bytes([index]) for index in range(20)]
    for raw in sent:
        bench.dealer.send(raw)
    assert bench.heard() == []
    bench.run(1)
    assert bench.heard() == sent and bench.there.num_wakes == 20
    bench.router.send_multipart([b"decode-0#1", b"answer"])
    bench.run(1)
    assert bench.dealer.recv_multipart() == [b"answer"]


def test_a_cut_loses_what_is_on_the_way_and_what_is_sent_before_it_is_noticed(bench: Bench) -> None:
    bench.run(1)
    bench.dealer.send(b"on the way")
    (connection,) = bench.network.connections
    bench.network.cut(connection, dealer_notices_s=0.1, router_notices_s=0.1)
    bench.dealer.send(b"into the void")
    bench.router.send_multipart([b"decode-0#1", b"into the void"])
    bench.run(0.11)
    bench.dealer.send(b"waits")
    with pytest.raises(zmq.ZMQError):
        bench.router.send_multipart([b"decode-0#1", b"nobody is there"])
    bench.run(1)
    assert bench.heard() == [b"waits"]
    assert bench.story.happened["lost"] == 3


def test_a_partition_loses_nothing(bench: Bench) -> None:
    bench.run(1)
    bench.network.weather.parted[frozenset((bench.here.name, bench.there.name))] = bench.agenda.now + 2
    sent = [bytes([index]) for index in range(5)]
    for raw in sent:
        bench.dealer.send(raw)
    bench.run(1.9)
    assert bench.heard() == []
    bench.run(0.2)
    assert bench.heard() == sent and not bench.story.happened


def test_a_process_that_ends_takes_its_messages_with_it_and_another_takes_its_place(bench: Bench) -> None:
    bench.run(1)
    bench.there.alive = False
    bench.network.end_of(bench.there, silently=False)
    bench.run(1)
    bench.dealer.send(b"for whoever is there")
    bench.run(1)
    next_one = Process("prefill-0#3")
    router = SimulatedRouter(bench.network, next_one)
    router.bind("tcp://127.0.0.1:0")
    bench.run(1)
    assert router.recv_multipart() == [b"decode-0#1", b"for whoever is there"]
    assert bench.heard() == []


def test_a_full_queue_takes_nothing(bench: Bench) -> None:
    bench.context.num_to_refuse = 1
    with pytest.raises(zmq.Again):
        bench.dealer.send(b"lost")
    bench.dealer.send(b"comes")
    bench.run(1)
    assert bench.heard() == [b"comes"] and bench.story.happened["full"] == 1
