"""The contract over a real Ray cluster, two workers of it on two nodes, and what is left when one of them is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest
import zmq

pytest.importorskip("ray", reason="the extra `ray` is not installed")
import ray

from loadtest.tied import tied
from protocol.errors import ConfigError, WireError
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from tests.transfer.backends.ray.ray_cluster import STORE_BYTES, ray_cluster, stored_bytes
from tests.transfer.backends.ray.ray_workers import DecodeEnd, PrefillEnd
from tests.transfer.contract import DECODE, KvContract, Pair
from tests.transfer.memory import LAYOUT, HostMemory, expected_pool
from transfer.backends.ray.backend import RayArrivals, RayPorter, join_cluster, ray_receiver, ray_sender
from transfer.interfaces import PageMemory, Pollable, SharedPages
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import Delivered, FirstFrame
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES, Destination

pytestmark = pytest.mark.broad  # a Ray cluster in each of the processes that run them; tests/e2e/test_ray.py stays
PAGE_1M = KvLayout.uniform(num_layers=1, num_kv_heads=8, head_dim=128, page_size=128, dtype="float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster() as address:
        yield address


class SharedArrivals:
    """One porter for many receivers, one after the other: a porter is a process, and takes a second to start."""

    backend = "ray"
    is_ordered = False

    def __init__(self, context: "zmq.Context[Any]") -> None:
        self.inner = RayArrivals(HostMemory(LAYOUT, 2, seed=0), context)
        self.address = self.inner.address

    def receive(self) -> Sequence[memoryview] | None:
        return self.inner.receive()

    def pollables(self) -> list[Pollable]:
        return self.inner.pollables()

    def meet(self, instance: int, export: bytes) -> None:
        """See interfaces.Arrivals."""

    def lose(self, instance: int) -> None:
        """See interfaces.Arrivals."""

    def close(self) -> None:
        """Leaves nothing of this receiver to the next."""
        RayPorter(self.address).carry([[np.frombuffer(b"end", np.uint8)]]).result(60)
        while True:
            zmq.select(self.pollables(), [], [])
            if [part.tobytes() for part in self.receive() or ()] == [b"end"]:
                return


@pytest.fixture(scope="module")
def shared(cluster: str) -> Iterator[SharedArrivals]:
    with zmq.Context() as context:
        made = SharedArrivals(context)
        yield made
        made.inner.close()


class RayNetwork:
    """Both ends in this process, a porter between them."""

    def __init__(self, shared: SharedArrivals) -> None:
        self.shared = shared

    def sender(self, memory: PageMemory, instance: int, window: int = WINDOW_BYTES) -> FrameSender:
        return ray_sender(memory, instance, window)

    def receiver(self, memory: SharedPages) -> FrameReceiver:
        return FrameReceiver(memory, self.shared)


@pytest.fixture
def network(shared: SharedArrivals) -> RayNetwork:
    return RayNetwork(shared)


class TestRay(KvContract):
    pass


# ---- with porters of their own ----


class OwnPorter(RayNetwork):
    def __init__(self, context: "zmq.Context[Any]") -> None:
        self.context = context

    def receiver(self, memory: SharedPages) -> FrameReceiver:
        return ray_receiver(memory, self.context)


@pytest.fixture
def own(cluster: str) -> Iterator[OwnPorter]:
    with zmq.Context() as context:
        yield OwnPorter(context)


def porter_of(address: str) -> Any:
    return ray.get_actor(address.rpartition("/")[2], "baton")


def pid_of_porter(address: str) -> int:
    return int(ray.get(porter_of(address).__ray_call__.remote(lambda porter: os.getpid())))


def until(met: Callable[[], bool], timeout_s: float = 180.0) -> None:
    """Tries until it is so; what is waited for happens in other processes."""
    for _ in range(int(timeout_s * 50)):
        if met():
            return
        Event().wait(0.02)
    raise AssertionError("not reached")


def test_two_workers_on_two_nodes(cluster: str) -> None:
    decode = ray.remote(DecodeEnd).options(num_cpus=1).remote()
    prefill = ray.remote(PrefillEnd).options(num_cpus=0, resources={"second": 1}).remote()
    source, target, num_tokens = [3, 4, 9], [10, 2, 7], 11
    address, decode_node, before = ray.get(decode.reserve.remote(1, target, num_tokens))
    prefill_node = ray.get(prefill.send.remote(address, 1, source, num_tokens))
    assert len({decode_node, prefill_node}) == 2
    events, pool = ray.get(decode.events.remote())
    assert [type(event) for event in events if isinstance(event, Delivered)] == [Delivered]
    memory, other = HostMemory(LAYOUT, 12, seed=1), HostMemory(LAYOUT, 12, seed=2)
    assert before == bytes(other.pool)
    assert pool == expected_pool(before, other, target, memory, source, num_tokens)
    assert ray.get(prefill.credit.remote(events)) == 0
    for actor in (prefill, decode):
        ray.kill(actor)


def test_what_has_landed_leaves_nothing_in_the_object_store(own: OwnPorter) -> None:
    pair = Pair(own, PAGE_1M)
    moved = 0
    while moved < 2 * STORE_BYTES:
        reservation = moved + 1
        transfer = pair.open(reservation, list(range(1, 12)), list(range(11, 0, -1)), 11 * 128)
        pair.send_all(transfer, 11 * 128)
        pair.until(lambda number=reservation: number in [delivered.reservation for delivered in pair.seen(Delivered)])  # type: ignore[misc]
        pair.sender.delivered(transfer)
        moved += 11 * PAGE_1M.layer(0).page_bytes
    until(lambda: stored_bytes() == 0)
    assert pair.sender.counters["bytes"] > 2 * STORE_BYTES
    pair.close()


def test_the_object_store_holds_no_more_than_credit_allows(own: OwnPorter) -> None:
    window = 8 * PAGE_1M.layer(0).page_bytes
    pair = Pair(own, PAGE_1M, window)
    porter = psutil.Process(pid_of_porter(pair.receiver.address))
    porter.suspend()
    transfers = [pair.open(number, list(range(1, 12)), list(range(1, 12)), 11 * 128) for number in (1, 2, 3)]
    for transfer in transfers:
        pair.send_all(transfer, 11 * 128)
    until(lambda: stored_bytes() > 0)
    held = [watched(pair) for _ in range(50)]
    assert 0 < max(held) <= window + 64 * 1024  # and what Ray adds to each
    porter.resume()
    pair.until(lambda: len(pair.seen(Delivered)) == 3)
    pair.close()
    until(lambda: stored_bytes() == 0)


def watched(pair: Pair) -> float:
    """What the object stores hold a moment later, when the sender has sent what it may."""
    pair.sender.pump()
    Event().wait(0.01)
    return stored_bytes()


def test_a_porter_that_dies_comes_back_and_nothing_is_lost(own: OwnPorter) -> None:
    pair = Pair(own)
    porter = psutil.Process(pid_of_porter(pair.receiver.address))
    transfer = pair.open(1, [1, 2], [3, 4], 8)
    pair.sender.layers_ready(transfer, (0,), 8)
    pair.until(lambda: bool(pair.seen(FirstFrame)))
    porter.suspend()
    for layer in range(1, LAYOUT.num_layers):
        pair.sender.layers_ready(transfer, (layer,), 8)
    pair.sender.finish(transfer, (5,))
    until(lambda: not pair.sender.is_reading(transfer))
    pair.settle()
    assert pair.seen(Delivered) == []
    porter.kill()
    until(lambda: bool(pair.poll()) and bool(pair.seen(Delivered)))
    assert pair.sender.broken() == []
    assert pair.pool.pool == expected_pool(pair.before, pair.pool, [3, 4], pair.source, [1, 2], 8)
    assert pid_of_porter(pair.receiver.address) != porter.pid
    pair.close()


def test_a_decode_process_that_is_killed_leaves_no_porter(cluster: str) -> None:
    program = str(Path(__file__).with_name("ray_workers.py"))
    variables = {**os.environ, "RAY_ADDRESS": cluster}
    with subprocess.Popen(
        tied((sys.executable, program)), env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address, pid = process.stdout.readline().split()
        porter = pid_of_porter(address)
        sender = ray_sender(HostMemory(LAYOUT, 4, seed=1), 1)
        target = Destination(WorkerAddress("d0", DECODE, ranks=(RankEndpoint(address),)), 1, 0)
        sender.open(target, [1], 4)
        assert psutil.pid_exists(porter)
        os.kill(int(pid), signal.SIGKILL)
    until(lambda: not psutil.pid_exists(porter))
    sender.layers_ready(target, (0,), 4)
    until(lambda: sender.broken() == [target])
    until(lambda: not sender.is_reading(target))
    sender.close()


def test_signals_are_still_ours_after_joining(cluster: str) -> None:
    program = (
        "import signal; signal.signal(signal.SIGTERM, lambda *_: print('ours', flush=True))\n"
        "from transfer.backends.ray.backend import join_cluster; join_cluster(); join_cluster()\n"
        "signal.raise_signal(signal.SIGTERM)"
    )
    variables = {**os.environ, "RAY_ADDRESS": cluster}
    done = subprocess.run(
        tied((sys.executable, "-c", program)), env=variables, capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stdout) == (0, "ours\n"), done.stderr


# ---- where there is no cluster ----


@pytest.mark.parametrize("address", ["local", "ray://127.0.0.1:10001", "localhost:x", "localhost", ":1", "h:70000"])
def test_no_cluster_is_started_and_no_client_is_made(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS: got '{address}'"):
        join_cluster()


@pytest.mark.parametrize("address, says", [("127.0.0.1:1", "Connection refused"), ("nobody.invalid:6379", "Errno")])
def test_an_address_where_nobody_listens_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str, says: str
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS: no cluster is reached at '{address}': .*{says}"):
        join_cluster()


def test_a_cluster_that_ray_does_not_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> None:
        raise ConnectionError(f"nobody at {options['address']}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"no cluster is reached at 'auto': nobody at auto"):
        join_cluster()


def test_an_endpoint_without_a_porter_is_refused(cluster: str) -> None:
    other = ray.remote(PrefillEnd).options(name="other", namespace="baton", num_cpus=0).remote()
    for address in ("ray://baton/nobody", "ray://elsewhere/nobody", "ray://", "ray://baton/other"):
        with pytest.raises(WireError, match=f"data address '{address}'"):
            RayPorter(address)
    ray.kill(other)
