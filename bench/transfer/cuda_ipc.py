"""KV from one process's device memory into another's, beside a plain copy: `make gpu STEP=ipc` measures it.

    decode's process    offers device memory and sums it afterwards
    prefill's process   maps it and moves a whole prompt there, like a sender; also copies within its own

Both launch it in two ways (launches.py), which tell the host's time from the device's.
The prompt is 32K tokens of an 8B model (Qwen3: 36 layers, 8 KV heads of 128, bfloat16). A CPU with shared memory
(testkit/device_on_host.py) shows that it runs. This file as a program is prefill's process.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from bench.child import Child, answer_all
from bench.device_seconds import seconds_each
from bench.transfer.launches import TOGETHER, CudaQueue, HostQueue, Queue, Times, Ways
from protocol.errors import BatonError
from protocol.kv_layout import KvLayout
from runtime.shared_memory import SharedMemory
from testkit.device_on_host import HostIpc
from transfer.backends.cuda_ipc import CudaIpc
from transfer.in_place.device_pools import AtDevice, DevicePool, DeviceReader, Ipc
from transfer.in_place.writers import PoolOwner, SeatFile
from transfer.offers import DeviceHandle, PoolOffer
from transfer.plan import Copy, Extents, Shard, moves_of

LAYOUT: Final = KvLayout.uniform(num_layers=36, num_kv_heads=8, head_dim=128, page_size=16, dtype="bfloat16")
NUM_TOKENS: Final = 32 * 1024
WARM_UP: Final = 3
ORDERS: Final = ("in order", "scattered")  # of the pages in decode's memory


@dataclass(frozen=True)
class Pages:
    """See transfer.in_place.device_pools.DevicePages."""

    layout: KvLayout
    num_pages: int
    device_bytes: Tensor


@dataclass(frozen=True)
class Prompt:
    """The prompt that is moved, on the first CUDA device or on a CPU in its place."""

    layout: KvLayout
    num_tokens: int
    device: str

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V in all layers."""
        return self.num_tokens * self.layout.all_page_bytes // self.layout.page_size

    def memory(self) -> "Memory":
        """Zeroed pages for the prompt, and the padding page."""
        num_pages = self.layout.num_pages(self.num_tokens) + 1
        num_bytes = self.layout.pool_bytes(num_pages)
        if self.device == "cpu":
            shared = SharedMemory(num_bytes)
            zeroed = torch.frombuffer(shared.mapping, dtype=torch.uint8)
            return Memory(Pages(self.layout, num_pages, zeroed), HostQueue(), HostIpc(shared))
        pages = Pages(self.layout, num_pages, torch.zeros(num_bytes, dtype=torch.uint8, device="cuda:0"))
        torch.cuda.synchronize()
        queue = CudaQueue(pages.device_bytes.device)
        queue.warm_up(self.layout.layer(0))
        return Memory(pages, queue, CudaIpc(pages.device_bytes.device))

    def plan(self, order: str) -> Copy:
        """The prompt's pages, in this one of ORDERS."""
        pages = np.arange(1, self.layout.num_pages(self.num_tokens) + 1)
        target = np.random.default_rng(1).permutation(pages) if order == "scattered" else pages
        layer = self.layout.layer(0)
        shards = Shard(layer, pages.tolist()), Shard(layer, target.tolist())
        moves = moves_of(*shards, range(layer.num_kv_heads), range(self.num_tokens))
        return Copy(moves, layer.page_bytes, layer.page_bytes)


@dataclass(frozen=True)
class Memory:
    """One process's memory, and what moves bytes there."""

    pages: Pages
    queue: Queue
    ipc: Ipc

    def fill(self) -> None:
        """Fills it with random bytes."""
        self.pages.device_bytes.random_(0, 256)
        self._made()

    def zero(self) -> None:
        """Forgets what was moved."""
        self.pages.device_bytes.zero_()
        self._made()

    def _made(self) -> None:
        if self.pages.device_bytes.is_cuda:
            torch.cuda.synchronize()


class Writing:
    """What prefill's process does: first it is told where to, then it moves, or copies within its own memory."""

    def __init__(self) -> None:
        self._ways: dict[str, Ways[Copy]] = {}
        self._pages: Pages | None = None

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out one command and returns its answer."""
        match command:
            case {"do": "begin", "offer": offer, "layout": layout, "num_tokens": num_tokens, "device": device}:
                prompt = Prompt(TypeAdapter(KvLayout).validate_python(layout), num_tokens, device)
                self._begin(prompt, PoolOffer(**{**offer, "device": DeviceHandle(**offer["device"])}))
            case {"do": "move", "order": order, "way": way}:
                ways = self._ways[order]
                return {"times": asdict(ways.timed(way)), "totals": ways.totals}
            case _:
                assert self._pages is not None, "begin comes first"
                return {"seconds": limit_seconds(self._pages)}
        return {}

    def _begin(self, prompt: Prompt, offer: PoolOffer) -> None:
        ours, num_layers = prompt.memory(), prompt.layout.num_layers
        ours.fill()
        pool = DevicePool(AtDevice(ours.pages, ours.queue, ours.ipc), prompt.layout, offer)
        self._pages = ours.pages
        self._ways = {order: Ways(ours.queue, pool.begin, partial(prompt.plan, order), num_layers) for order in ORDERS}


def limit_seconds(pages: Pages) -> float:
    """Seconds in which the device copies as many bytes within its own memory."""
    source_B = pages.device_bytes[pages.layout.span(pages.num_pages, 0, 0, pages.num_pages)]
    target_B = torch.empty_like(source_B)
    return sum(seconds_each(lambda: target_B.copy_(source_B), pages.layout.num_layers, source_B.device, warm_up=0))


def measure(
    repeat: int = 20,
    num_tokens: int = NUM_TOKENS,
    layout: KvLayout = LAYOUT,
    device: str = "cuda",
    ways: Sequence[str] = (TOGETHER,),
) -> dict[str, Any] | None:
    """Medians over repetitions, sides in turn; None without a device. `device` cpu: see Prompt. `ways`: some of WAYS,
    with TOGETHER."""
    if device != "cpu" and not torch.cuda.is_available():
        return None

    prompt = Prompt(layout, num_tokens, device)
    ours = prompt.memory()
    owner = PoolOwner(SeatFile(ours.pages.num_pages), ours.ipc.export(ours.pages.device_bytes))
    writer = Child((sys.executable, "-m", "bench.transfer.cuda_ipc"))
    rounds_of = Found()
    try:
        writer.ask(do="begin", offer=asdict(owner.offer()), **asdict(prompt))
        checks = _checks(prompt, ours, writer)
        for turn in range(WARM_UP + repeat):
            measured = rounds_of if turn >= WARM_UP else Found()
            measured.limit_s.append(writer.ask(do="limit")["seconds"])
            for order, way in product(ORDERS, ways):
                ours.zero()
                answer = writer.ask(do="move", order=order, way=way)
                check = checks[order].timed(way)
                if checks[order].sums() != answer["totals"]:
                    raise BatonError(f"{order}, {way}: what lies in decode's memory is not what prefill has read")
                measured.add(order, way, Times(**answer["times"]), check)
    finally:
        writer.close()
    return rounds_of.summary(prompt.num_bytes)


def _checks(prompt: Prompt, ours: Memory, writer: Child) -> dict[str, Ways[Extents]]:
    """How decode sums what was moved, by order. A first move is needed, because sums of other bytes differ."""
    reader = DeviceReader(ours.pages, ours.queue)
    checks = {}
    for order in ORDERS:
        writer.ask(do="move", order=order, way=TOGETHER)
        targets = partial(_targets, prompt, order)
        checks[order] = Ways(ours.queue, reader.begin, targets, prompt.layout.num_layers)
    return checks


def _targets(prompt: Prompt, order: str) -> Extents:
    return prompt.plan(order).targets


@dataclass(frozen=True)
class Found:
    """The times of each repetition, by order and way: of the moves, and of the sums over what was moved."""

    limit_s: list[float] = field(default_factory=list)
    moves: dict[tuple[str, str], list[Times]] = field(default_factory=dict)
    checks: dict[tuple[str, str], list[Times]] = field(default_factory=dict)

    def add(self, order: str, way: str, move: Times, check: Times) -> None:
        """One repetition."""
        self.moves.setdefault((order, way), []).append(move)
        self.checks.setdefault((order, way), []).append(check)

    def summary(self, num_bytes: int) -> dict[str, Any]:
        """Medians. A copy within a device counts like one between two. The first five are of TOGETHER."""
        limit_s = median(self.limit_s)
        in_order, scattered = (medians(self.moves[order, TOGETHER]) for order in ORDERS)
        return {
            "gb_s": num_bytes / in_order.wall / 1e9,
            "scattered_gb_s": num_bytes / scattered.wall / 1e9,
            "limit_gb_s": num_bytes / limit_s / 1e9,
            "share": limit_s / in_order.wall,
            "ms_32k": in_order.wall * 1e3,
            "check_ms_32k": medians(self.checks[ORDERS[0], TOGETHER]).wall * 1e3,
            "bytes": num_bytes,
            "ways": [
                {"what": what, "order": order, "way": way, **asdict(medians(times))}
                for what, by_way in (("move", self.moves), ("sum", self.checks))
                for (order, way), times in by_way.items()
            ],
        }


def medians(times: Sequence[Times]) -> Times:
    """Each of the three alone."""
    return Times(*(median(seconds) for seconds in zip(*(astuple(one) for one in times), strict=True)))


if __name__ == "__main__":
    answer_all(Writing().do)
