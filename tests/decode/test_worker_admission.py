"""Who is admitted at decode, in which order, and that a turn costs the same however many wait."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode.prefill_peers import PrefillPeers
from decode.requests import DecodeRequest, Requests
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Assign, CancelRequest, WorkerAddress
from scheduler.execution.streams import InlineStream
from tests.cluster import Cluster
from tests.counting import instructions
from tests.decode.driving import Phase, drive_to, expect_rest, greedy, make_cluster, prompt_of
from tests.doubles.clock import VirtualClock
from tests.scheduler.building import make_executor, make_planner
from transfer.landing.frame_receiver import FrameReceiver
from transfer.offers import Agreed
from worker.requests import Outbox

LAYOUT = KvLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=4, page_size=4, dtype="float32")
PREFILLS = [WorkerAddress(f"p{instance}", instance) for instance in range(3)]
CREDIT = 40


class Receiver:
    """Receives nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_parts, **_options: None


def place(request: DecodeRequest) -> tuple[bool, float, int]:
    """Requests arrive a tenth of a second apart."""
    assign = request.assign
    return not assign.resumes, 0 if assign.resumes else request.order * 0.1 + assign.priority, request.order


class ByScanning(Requests):
    """The order as it is defined: everybody is looked at, preempted requests first, then by priority and age."""

    def admit(self, now: float) -> list[DecodeRequest]:
        admitted: list[DecodeRequest] = []
        waiting = [request for line in self._lines.values() for request in line]
        for request in sorted(waiting, key=place):
            if not self._peers.takes_jobs(request.prefill.instance):
                continue  # who lacks job credit lets others pass
            if not self._reserve(request, now):
                break  # who lacks pages or rows holds the rest back
            admitted.append(request)
        return admitted


class World:
    """Requests over 8 rows and 63 pages of 4 tokens, of three prefill workers; and what is admitted."""

    def __init__(self, kind: type[Requests]) -> None:
        self.planner = make_planner(make_executor(InlineStream()))
        receiver = cast(FrameReceiver, Receiver())
        decode = WorkerAddress("d", 99)
        self.peers = PrefillPeers(decode, LAYOUT, Fingerprint("print"), receiver, Outbox(), VirtualClock())
        self.requests = kind(self.planner, receiver, self.peers, reservations_from=1)
        self.all: dict[int, DecodeRequest] = {}
        self.admitted: list[int] = []

    def act(self, name: str, number: int, size: int) -> None:
        """One thing that may happen at a decode worker."""
        prefill = PREFILLS[number % len(PREFILLS)]
        if name == "assign":
            assign = Assign(f"r{number}", 0, (1,) * (1 + size), greedy(1 + size % 30), 1 + number % 4, prefill)
            assign = replace(assign, resumes=size % 5 == 0, priority=size % 4)
            request = self.requests.add(assign, prefill, now=len(self.all) * 0.1)
            self.all[request.order] = request
        elif name == "accept":
            self.peers.greet(prefill)
            if (peer := self.peers.by_instance.get(prefill.instance)) is not None and not peer.accepted:
                peer.granted, peer.layout, peer.agreed = CREDIT, LAYOUT, Agreed("zmq", in_place=False)
        elif name == "lose":
            self.peers.lose(prefill.instance)
        elif name == "admit":
            self.admitted += [request.order for request in self.requests.admit(now=0.0)]
        elif self.all:
            request = self.all[number % len(self.all)]
            if name == "credit":
                if (peer := self.peers.by_instance.get(request.prefill.instance)) is not None:
                    peer.settle(request.reservation)
            else:
                self.requests.close(request)
                for req in request.reqs:
                    self.planner.release(req)


ACTS = st.tuples(
    st.sampled_from(["assign"] * 4 + ["admit"] * 3 + ["accept", "accept", "lose", "credit", "credit", "end", "end"]),
    st.integers(0, 50),
    st.integers(0, 39),
)


@given(st.lists(ACTS, min_size=5, max_size=60))
def test_the_order_of_admission_is_that_of_looking_at_everybody(acts: list[tuple[str, int, int]]) -> None:
    new, defined = World(Requests), World(ByScanning)
    for act in [*(("accept", number, 0) for number in (0, 1)), *acts, ("admit", 0, 0)]:
        new.act(*act)
        defined.act(*act)
        assert new.admitted == defined.admitted
        for one, other in zip(new.peers.by_instance.values(), defined.peers.by_instance.values(), strict=True):
            assert one.queued == other.queued and one.tokens_queued == sum(one.queued.values())


def crowded(monkeypatch: pytest.MonkeyPatch, num_waiting: int, lack: str) -> Cluster:
    """A decode worker at which `num_waiting` requests lack job credit, or pages."""
    if lack == "credit":
        monkeypatch.setattr("prefill.decode_peers.JOB_TOKENS", 10)
    cluster = make_cluster(clock=VirtualClock(), num_pages=20)
    cluster.assign("first", prompt_of("first", 30), greedy(30))
    drive_to(cluster, "first", Phase.WAITING)
    for index in range(num_waiting):
        cluster.assign(f"r{index}", prompt_of("r", 30), greedy(9))
    decode = next(iter(cluster.decodes.values()))
    for _ in range(3):
        decode.turn()
    assert decode.stats().waiting == 1 + num_waiting
    return cluster


@pytest.mark.parametrize("lack", ["credit", "pages"])
def test_a_turn_and_a_cancel_cost_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch, lack: str) -> None:
    turns, cancels = [], []
    for num_waiting in (10, 200):
        cluster = crowded(monkeypatch, num_waiting, lack)
        decode = next(iter(cluster.decodes.values()))
        turns.append(instructions(decode.turn))
        cancels.append(instructions(lambda worker=decode: worker.on_gateway(CancelRequest("r7", 0))))  # type: ignore[misc]
        decode.reset()
        for prefill in cluster.prefills.values():
            prefill.reset()
        cluster.answers.clear()
        expect_rest(cluster)
    assert turns[0] == turns[1] > 0
    assert cancels[0] == cancels[1] > 0
