"""Device memory of decode workers stays mapped exactly as long as they are peers, whatever ends them.

The driver would keep the memory of a dead process for as long as it is mapped here. In place of the driver a ledger
counts what is opened and closed; copies run when a test says so.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from model.paged_kv import PagedKv
from prefill.worker import PrefillWorker
from protocol.errors import WireError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Assign, PeerLost, RankEndpoint, WorkerAddress
from protocol.messages_handoff import CancelJob, Hello, HelloAccepted, HelloRefused, PrefillJob
from runtime.shared_memory import is_taken
from scheduler.execution.streams import InlineStream
from testkit.device_on_host import LocalIpc
from tests.doubles.backend_inproc import InprocNetwork
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.doubles.held_copies import HeldCopies
from tests.prefill.driving import PREFILL
from tests.processes import num_open_files
from tests.scheduler.building import greedy, make_executor, make_planner
from transfer.in_place.device_pools import AtDevice, DevicePool
from transfer.in_place.pools import ON_DEVICE, Pools
from transfer.in_place.writers import PoolOwner, SeatFile
from transfer.offers import OFFER, DeviceHandle, PoolOffer
from transfer.sending.frame_sender import FrameSender
from worker.policies import Policies

PROMPT, NUM_PAGES = tuple(range(10)), 32


class LedgerIpc:
    """Counts the mappings of each allocation. None may be closed twice, or while a copy may be under way."""

    def __init__(self, device: HeldCopies) -> None:
        self._local = LocalIpc()
        self.mapped: Counter[str] = Counter()
        self.num_opened = self.num_closed = 0
        self._device = device

    def export(self, memory: Tensor) -> DeviceHandle:
        return self._local.export(memory)

    def open(self, offered: DeviceHandle) -> "Mapping":
        opened = self._local.open(offered)
        self.mapped[offered.handle] += 1
        self.num_opened += 1
        return Mapping(opened.memory, self, offered.handle)

    def close(self, handle: str, memory: Tensor) -> None:
        for held in self._device.queue:
            target_W = held.run.args[1]  # type: ignore[attr-defined]
            assert target_W.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr(), "a copy is due"
        self.mapped[handle] -= 1
        self.num_closed += 1
        assert self.mapped[handle] >= 0, "it was closed twice"


@dataclass(frozen=True, eq=False)
class Mapping:
    """See Opened."""

    memory: Tensor
    ledger: LedgerIpc
    handle: str

    def close(self) -> None:
        self.ledger.close(self.handle, self.memory)


class Decode:
    """The process of a decode worker. Each of its lives has an instance of its own, and the same memory."""

    def __init__(self, number: int, layout: KvLayout, ipc: LedgerIpc, endpoint: str) -> None:
        self.name, self._layout, self._endpoint = f"decode-{number}", layout, endpoint
        self._kv = PagedKv(layout, NUM_PAGES)
        self.device = ipc.export(self._kv.device_bytes)
        self._seats = SeatFile(NUM_PAGES)
        self._owner = PoolOwner(self._seats, self.device)
        self.offered: list[int] = []  # seats

    def hello(self, instance: int) -> Hello:
        offer = self._owner.offer()
        self.offered.append(offer.seat)
        address = WorkerAddress(self.name, instance, ranks=(RankEndpoint(self._endpoint),))
        return Hello(address, self._layout, Fingerprint("print"), OFFER.encode(offer))

    @property
    def num_taken(self) -> int:
        return sum(is_taken(self._seats.shared_fd, seat) for seat in self.offered)


class World:
    """One prefill worker whose device writes, and the decode workers that come and go."""

    def __init__(self) -> None:
        self.device = HeldCopies()
        self.ipc = LedgerIpc(self.device)
        self.network = InprocNetwork()
        runner = FakeRunner(vocab_size=97, context_length=64)
        self.kv = PagedKv(runner.kv_layout(4), 64)
        planner = make_planner(make_executor(InlineStream(), runner=runner, kv=self.kv))
        ways = {ON_DEVICE: partial(DevicePool, AtDevice(self.kv, self.device, self.ipc))}
        wires: Any = self.network.sender(self.kv, PREFILL.instance)._wire
        self.sender = FrameSender(self.kv, PREFILL.instance, wires, pools=Pools(ways, "cuda_ipc"))
        self.worker = PrefillWorker(
            planner, self.sender, PREFILL, Fingerprint("print"), VirtualClock(), Policies(chunk_size=4)
        )
        self.processes: dict[int, Decode] = {}  # by the instance that is a peer
        self.num_instances = self.num_jobs = self.num_in_mid_transfer = 0

    def endpoint(self) -> str:
        return self.network.receiver(self.kv).address

    def comes(self, process: Decode | None = None) -> int:
        """A new worker, or another life of a process."""
        self.num_instances += 1
        made = process or Decode(self.num_instances, self.kv.layout, self.ipc, self.endpoint())
        self.greets(100 + self.num_instances, made)
        return 100 + self.num_instances

    def greets(self, instance: int, process: Decode) -> None:
        self.worker.on_peer(instance, process.hello(instance))
        (_, answer) = self.worker.outbox.decode[-1]
        assert isinstance(answer, HelloAccepted), answer
        self.processes[instance] = process

    def has_job(self, instance: int) -> None:
        self.num_jobs += 1
        pages = tuple(range(1, 1 + self.kv.layout.num_pages(len(PROMPT))))
        assign = Assign(f"r{self.num_jobs}", 0, PROMPT, greedy(5), 1, None)
        self.worker.on_peer(instance, PrefillJob(assign, self.num_jobs, pages))

    def dies(self, instance: int) -> None:
        """Its process, and the gateway says so."""
        self.num_in_mid_transfer += bool(self.device.queue)
        self.worker.on_gateway(PeerLost(self.processes.pop(instance).name, instance))

    def returns(self, instance: int, *, greets_first: bool) -> None:
        """It is declared lost although its process lives. Its new life may greet before the gateway has said so."""
        process = self.processes[instance]
        if greets_first:
            self.comes(process)
        self.dies(instance)
        if not greets_first:
            self.comes(process)

    def has_a_new_gateway(self, rng: random.Random) -> None:
        """It reports nobody, and some have died with the old one."""
        living = {instance: its_process for instance, its_process in self.processes.items() if rng.random() < 0.7}
        self.worker.reset()
        self.processes.clear()
        self.check()
        for instance, process in living.items():
            self.greets(instance, process)

    def something_happens(self, rng: random.Random) -> None:
        known = list(self.processes)
        if not known or rng.random() < 0.15:
            self.comes()
            return
        one = rng.choice(known)
        acts: list[Callable[[], None]] = [
            lambda: self.dies(one),
            lambda: self.returns(one, greets_first=rng.random() < 0.5),
            lambda: self.greets(one, self.processes[one]),
            lambda: self.has_job(one),
            lambda: self.has_job(one),
            lambda: self.worker.on_peer(one, CancelJob(rng.randint(1, self.num_jobs + 1))),
            lambda: self.has_a_new_gateway(rng),
        ]
        rng.choice(acts)()

    def check(self) -> None:
        """What is mapped belongs to the peers, once each; and so do the seats."""
        mine: Counter[str] = Counter(process.device.handle for process in self.processes.values())
        assert +self.ipc.mapped == mine
        assert self.ipc.num_opened - self.ipc.num_closed == len(self.processes)
        for process in self.processes.values():
            assert process.num_taken == mine[process.device.handle]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_mapped_belongs_to_peers_whatever_comes_and_goes(seed: int) -> None:
    rng, world = random.Random(seed), World()
    for _ in range(100):
        world.something_happens(rng)
        for _ in range(rng.randint(0, 6)):
            world.worker.turn()
            if world.device.queue and rng.random() < 0.5:
                world.device.step()
        world.check()

    assert world.ipc.num_opened > 20 and world.num_in_mid_transfer > 0, "many came, and some died in mid-transfer"
    for instance in list(world.processes):
        world.dies(instance)
    world.check()
    assert not +world.ipc.mapped and world.ipc.num_closed == world.ipc.num_opened


def test_a_life_that_is_over_has_nothing_mapped() -> None:
    world = World()
    for _ in range(4):
        world.has_job(world.comes())
        world.worker.turn()
    world.sender.close()
    assert (world.ipc.num_opened, world.ipc.num_closed) == (4, 4) and not world.device.queue


def test_an_instance_that_was_lost_maps_nothing_when_it_greets_again() -> None:
    world = World()
    instance = world.comes()
    process = world.processes[instance]
    world.dies(instance)
    world.worker.on_peer(instance, process.hello(instance))
    assert isinstance(world.worker.outbox.decode[-1][1], HelloRefused)
    world.check()
    assert process.num_taken == 0


@pytest.mark.parametrize("fails_at", ["words", "open"])
def test_a_mapping_that_cannot_be_used_is_closed_and_its_seat_is_free(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    process = Decode(1, world.kv.layout, world.ipc, world.endpoint())
    offer: PoolOffer = process._owner.offer()

    def fails(memory: Tensor, *_: object) -> list[Tensor]:
        if fails_at == "words" and memory.data_ptr() == world.kv.device_bytes.data_ptr():
            return []  # its own
        raise WireError("torch cannot use it")

    at = {
        "open": "testkit.device_on_host.LocalIpc.open",
        "words": "transfer.in_place.device_pools.LayerWords",
    }
    monkeypatch.setattr(at[fails_at], fails)
    num_files = num_open_files()
    with pytest.raises(WireError, match="torch cannot use it"):
        DevicePool(AtDevice(world.kv, world.device, world.ipc), world.kv.layout, offer)
    assert num_open_files() == num_files and world.ipc.num_opened == world.ipc.num_closed
    assert not process._owner.is_taken(offer.seat)
