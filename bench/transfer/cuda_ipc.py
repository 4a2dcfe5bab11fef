"""`python -m bench.transfer.cuda_ipc`: KV from one process's device memory into another's, beside a plain copy.

    decode's process    offers device memory and sums it afterwards
    prefill's process   maps it and moves a whole prompt there layer by layer, like a sender; also copies within its own

The prompt is 32K tokens of an 8B model (Qwen3: 36 layers, 8 KV heads of 128, bfloat16). Without a CUDA device it prints
"not yet measured". `measure` also takes a CPU with shared memory (host_ipc.py), to show that it runs.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import IO, Any, Final, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.transfer.host_ipc import HostIpc
from loadtest.tied import tied
from protocol.errors import BatonError
from protocol.kv_layout import KvLayout
from runtime.shared_memory import SharedMemory
from tests.doubles.device_on_host import HostCopies
from transfer.backends.cuda_ipc import at_device
from transfer.in_place.device_pools import AtDevice, DevicePool, DeviceReader, Moving
from transfer.in_place.writers import PoolOwner, SeatFile
from transfer.offers import DeviceHandle, PoolOffer
from transfer.plan import Copy, Runs, Shard, moves_of

LAYOUT: Final = KvLayout.uniform(num_layers=36, num_kv_heads=8, head_dim=128, page_size=16, dtype="bfloat16")
NUM_TOKENS: Final = 32 * 1024
WARM_UP: Final = 3
P = TypeVar("P", Copy, Runs)
NOT_MEASURED: Final = "cuda_ipc: not yet measured: there is no CUDA device here"


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

    def memory(self) -> AtDevice:
        """Zeroed pages for the prompt, and the padding page."""
        num_pages = self.layout.num_pages(self.num_tokens) + 1
        num_bytes = self.layout.pool_bytes(num_pages)
        if self.device == "cpu":
            shared = SharedMemory(num_bytes)
            zeroed = torch.frombuffer(shared.mapping, dtype=torch.uint8)
            return AtDevice(Pages(self.layout, num_pages, zeroed), HostCopies(), HostIpc(shared))
        pages = Pages(self.layout, num_pages, torch.zeros(num_bytes, dtype=torch.uint8, device="cuda:0"))
        torch.cuda.synchronize()
        return at_device(pages)

    def plan(self, scattered: bool) -> Copy:
        """The prompt's pages, consecutive or scattered."""
        pages = np.arange(1, self.layout.num_pages(self.num_tokens) + 1)
        target = np.random.default_rng(1).permutation(pages) if scattered else pages
        layer = self.layout.layer(0)
        shards = Shard(layer, pages.tolist()), Shard(layer, target.tolist())
        moves = moves_of(*shards, range(layer.num_kv_heads), range(self.num_tokens))
        return Copy(moves, layer.page_bytes, layer.page_bytes)


def seconds_of(begin: Callable[[int, P], Moving], what: P, num_layers: int) -> tuple[float, list[int]]:
    """Seconds for all layers, from when the first is given to the device; and their sums."""
    start = perf_counter()
    moving = [begin(layer, what) for layer in range(num_layers)]
    for each in moving:
        each.wait()
    return perf_counter() - start, [each.total for each in moving]


def prefill(commands: IO[str], answers: IO[str]) -> None:
    """The process that writes."""
    told = json.loads(commands.readline())
    offer = PoolOffer(**{**told["offer"], "device": DeviceHandle(**told["offer"]["device"])})
    prompt = Prompt(TypeAdapter(KvLayout).validate_python(told["layout"]), told["num_tokens"], told["device"])

    ours = prompt.memory()
    ours.pages.device_bytes.random_(0, 256)
    if prompt.device != "cpu":
        torch.cuda.synchronize()
    pool = DevicePool(ours, prompt.layout, offer)

    for line in commands:
        command = json.loads(line)
        if command["do"] == "move":
            copy = prompt.plan(command["scattered"])
            seconds, totals = seconds_of(pool.begin, copy, prompt.layout.num_layers)
            answer = {"seconds": seconds, "totals": totals}
        else:
            answer = {"seconds": limit_seconds(ours)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    pool.close()


def limit_seconds(ours: AtDevice) -> float:
    """Seconds in which the device copies as many bytes within its own memory."""
    pages = ours.pages
    source_B = pages.device_bytes[pages.layout.span(pages.num_pages, 0, 0, pages.num_pages)]
    target_B = torch.empty_like(source_B)
    times = range(pages.layout.num_layers)

    if source_B.device.type == "cpu":
        start = perf_counter()
        for _ in times:
            target_B.copy_(source_B)
        return perf_counter() - start

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in times:
        target_B.copy_(source_B)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


class Writer:
    """The other process. It dies with this one."""

    def __init__(self, told: dict[str, Any]) -> None:
        command = tied((sys.executable, "-m", "bench.transfer.cuda_ipc", "--prefill"))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tell(told)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the answer."""
        self._tell(command)
        assert self._process.stdout is not None, "it is a pipe"
        if not (line := self._process.stdout.readline()):
            raise BatonError("the process that writes has ended; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def measure(
    repeat: int = 20, num_tokens: int = NUM_TOKENS, layout: KvLayout = LAYOUT, device: str = "cuda"
) -> dict[str, Any] | None:
    """Medians over repetitions, sides in turn; None without a device. `device` cpu: see Prompt."""
    if device != "cpu" and not torch.cuda.is_available():
        return None

    prompt = Prompt(layout, num_tokens, device)
    ours = prompt.memory()
    reader = DeviceReader(ours.pages, ours.copies)
    owner = PoolOwner(SeatFile(ours.pages.num_pages), ours.export())
    writer = Writer({**asdict(prompt), "offer": asdict(owner.offer())})
    seconds: dict[str, list[float]] = {"in order": [], "scattered": [], "limit": [], "check": []}

    try:
        for turn in range(WARM_UP + repeat):
            times = {"limit": writer.ask(do="limit")["seconds"]}
            for name in ("in order", "scattered"):
                moved = writer.ask(do="move", scattered=name == "scattered")
                written = prompt.plan(name == "scattered").targets
                times[name] = moved["seconds"]
                times["check"], totals = seconds_of(reader.begin, written, layout.num_layers)
                if totals != moved["totals"]:
                    raise BatonError("what lies in decode's memory is not what prefill has read")
            if turn >= WARM_UP:
                for name, each in times.items():
                    seconds[name].append(each)
    finally:
        writer.close()
    return summary(seconds, prompt.num_bytes)


def summary(seconds: dict[str, list[float]], num_bytes: int) -> dict[str, Any]:
    """The figures of each side's median repetition. A copy within a device counts like one between two."""
    gb_s = {name: num_bytes / median(each) / 1e9 for name, each in seconds.items()}
    return {
        "gb_s": gb_s["in order"],
        "scattered_gb_s": gb_s["scattered"],
        "limit_gb_s": gb_s["limit"],
        "share": gb_s["in order"] / gb_s["limit"],
        "ms_32k": median(seconds["in order"]) * 1e3,
        "check_ms_32k": median(seconds["check"]) * 1e3,
        "bytes": num_bytes,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.transfer.cuda_ipc", description=__doc__)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--prefill", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.prefill:
        prefill(sys.stdin, sys.stdout)
        return 0
    figures = measure(options.repeat)
    if figures is None:
        print(NOT_MEASURED)
        print(json.dumps({"cuda_ipc": None}))
        return 0

    table = Table("32K tokens of an 8B model", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
    print(json.dumps({"cuda_ipc": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
