"""The same engines on a CUDA device: streams, pinned copies, KV staged through host memory, Triton attention."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import torch

from model.paged_kv import PagedKv
from model.runner import ModelRunner
from protocol.errors import WireError
from protocol.messages_gateway import SamplingParams
from runtime.shared_memory import is_ending
from testkit.checkpoints import make_checkpoint
from tests.cluster import Cluster
from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import PROJECT, BatonProcess
from tests.handoff.device_copies import LAYOUT, PAGES_HERE, PAGES_THERE, copy_of
from transfer.backends.cuda_ipc import CudaCopies, at_device
from transfer.in_place.device_pools import DevicePool, DeviceReader
from transfer.in_place.pools import ON_DEVICE, Pools
from transfer.in_place.writers import PoolOwner, SeatFile
from transfer.offers import DeviceHandle, PoolOffer

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("topology", ["1P1D", "2P2D", "1U"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("debug", [True, False])  # its checks wait for the device: without them launches overlap
def test_every_token_is_right_on_cuda(topology: str, overlap: bool, page_size: int, debug: bool) -> None:
    runner = FakeRunner(context_length=512, device=torch.device("cuda"))
    cluster = Cluster(
        runner,
        topology,
        overlap=overlap,
        page_size=page_size,
        num_pages=4000 // page_size,
        mirrored="U" not in topology,
        debug=debug,
    )
    prompts = [[(7 * index + 3 * at) % runner.vocab_size for at in range(1 + 9 * index)] for index in range(8)]
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, SamplingParams(max_tokens=16, temperature=0.0), n=1 + index % 2)
    cluster.run()
    for index, prompt in enumerate(prompts):
        for choice in range(1 + index % 2):
            assert cluster.answers[f"r{index}", choice].ids == runner.expected_tokens(prompt, 16)
    cluster.close()


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_greedy_tokens_on_cuda_equal_those_on_the_cpu(tmp_path: Path, topology: str) -> None:
    folder = make_checkpoint(tmp_path / "m", "qwen3")
    answers = []
    for device in ("cpu", "cuda"):
        runner = ModelRunner.load(folder, device=device, dtype="float32", context_length=256)
        cluster = Cluster(runner, topology, mirrored=device == "cuda" and topology == "1P1D")
        for index in range(6):
            prompt = [(5 * index + at) % 250 for at in range(3 + 11 * index)]
            cluster.assign(f"r{index}", prompt, SamplingParams(max_tokens=32, temperature=0.0))
        cluster.run()
        answers.append([cluster.answers[f"r{index}", 0].ids for index in range(6)])
        cluster.close()
    assert answers[0] == answers[1]


# ---- KV from one process's device memory into another's ----

WRITER = """
import json, sys
import torch
from model.paged_kv import PagedKv
from transfer.offers import DeviceHandle, PoolOffer
from tests.handoff.device_copies import LAYOUT, PAGES_HERE, PAGES_THERE, copy_of
from transfer.backends.cuda_ipc import at_device
from transfer.in_place.device_pools import DevicePool

told = json.loads(sys.stdin.readline())
offer = PoolOffer(**{**told, "device": DeviceHandle(**told["device"])})
kv = PagedKv(LAYOUT, 12, "cuda:0")
kv.device_bytes.fill_(3)
torch.cuda.synchronize()
pool = DevicePool(at_device(kv), LAYOUT, offer)
moving = pool.begin(range(LAYOUT.num_layers), copy_of(PAGES_HERE, PAGES_THERE))
moving.wait()
print(json.dumps(moving.totals), flush=True)
sys.stdin.readline()
pool.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@contextmanager
def writer(offer: PoolOffer) -> Iterator["subprocess.Popen[str]"]:
    """Another process that writes into what is offered."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(offer)) + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: "subprocess.Popen[str]", then: str = "") -> str:
    """The writer's next line, after a word to it."""
    assert process.stdin is not None and process.stdout is not None
    if then:
        process.stdin.write(then + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def test_another_process_writes_valid_slots_and_nothing_else() -> None:
    kv = PagedKv(LAYOUT, 12, "cuda:0")
    kv.device_bytes.fill_(1)
    torch.cuda.synchronize()
    ours = at_device(kv)
    seats = PoolOwner(SeatFile(kv.num_pages), ours.export())
    offer = seats.offer()
    with writer(offer) as process:
        totals = json.loads(said(process))
        assert seats.is_taken(offer.seat)
        reader = DeviceReader(kv, ours.copies)
        written = copy_of(PAGES_HERE, PAGES_THERE).targets
        layers = range(LAYOUT.num_layers)
        for some in (layers, layers[:1], layers[1:]):
            reading = reader.begin(some, written)
            reading.wait()
            assert reading.totals == totals[some.start : some.stop]
        want = torch.full(kv.device_bytes.shape, 1, dtype=torch.uint8)
        for start, end in written.spans:
            want.view(LAYOUT.num_layers, -1)[:, start:end] = 3
        assert torch.equal(kv.device_bytes.cpu(), want)
        kv.device_bytes.view(LAYOUT.num_layers, -1)[1, written.spans[0][0]] ^= 1
        torch.cuda.synchronize()
        reading = reader.begin(layers, written)
        reading.wait()
        assert [one == other for one, other in zip(reading.totals, totals, strict=True)] == [at != 1 for at in layers]
        assert said(process, "close") == "closed"
        assert not seats.is_taken(offer.seat) and not is_ending(process.pid)


def test_a_writer_that_is_killed_lets_go_of_seat_and_device() -> None:
    kv = PagedKv(LAYOUT, 12, "cuda:0")
    ours = at_device(kv)
    seats = PoolOwner(SeatFile(kv.num_pages), ours.export())
    offer = seats.offer()
    with writer(offer) as process:
        assert json.loads(said(process)) and seats.is_taken(offer.seat)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not seats.is_taken(offer.seat) and not is_ending(process.pid)
    with writer(seats.offer()) as process:
        assert json.loads(said(process))


OWNER = """
import json, sys
from dataclasses import asdict
import torch
from model.paged_kv import PagedKv
from tests.handoff.device_copies import LAYOUT
from transfer.backends.cuda_ipc import CudaIpc
from transfer.in_place.writers import PoolOwner, SeatFile

kv = PagedKv(LAYOUT, int(sys.argv[1]), "cuda:0")
torch.cuda.synchronize()
seats = PoolOwner(SeatFile(kv.num_pages), CudaIpc(kv.device_bytes.device).export(kv.device_bytes))
while True:
    print(json.dumps(asdict(seats.offer())), flush=True)
    if not sys.stdin.readline():
        break
"""
LENT_BYTES = 512 << 20
SLACK_BYTES = 128 << 20  # what the driver keeps of its own; one pool that did not come back would be four times as much
BACK_S = 60.0


def offered(process: "subprocess.Popen[str]", then: str = "") -> PoolOffer:
    """The next offer of a process that lends its memory."""
    told = json.loads(said(process, then))
    return PoolOffer(**{**told, "device": DeviceHandle(**told["device"])})


def wait_for_memory(at_least: int) -> None:
    """The driver takes the memory of a process back some moments after its end."""
    last = monotonic() + BACK_S
    while (free := torch.cuda.mem_get_info()[0]) < at_least:
        assert monotonic() < last, f"{(at_least - free) >> 20} MiB have not come back"


@contextmanager
def owner_of(num_pages: int) -> Iterator["subprocess.Popen[str]"]:
    """Another process that lends so many pages, until it is killed."""
    command = [sys.executable, "-c", OWNER, str(num_pages)]
    process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def held(stream: torch.cuda.Stream) -> Iterator[None]:
    """What is given to the stream within the block waits until the block ends."""
    is_free = threading.Event()

    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _data: is_free.wait())
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc  # a thread of the driver calls it in the stream's order
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    assert launch(stream.cuda_stream, ctypes.cast(wait, ctypes.c_void_p), None) == 0
    try:
        yield
    finally:
        is_free.set()
        stream.synchronize()  # `wait` lives until then


def test_memory_of_peers_that_are_gone_comes_back() -> None:
    """One is killed, one in mid-transfer, one when it has come back as a new instance."""
    kv, copy = PagedKv(LAYOUT, 12, "cuda:0"), copy_of(PAGES_HERE, PAGES_THERE)
    ours = at_device(kv)
    assert isinstance(ours.copies, CudaCopies)
    pools = Pools({ON_DEVICE: partial(DevicePool, ours)}, "cuda_ipc")
    before = torch.cuda.mem_get_info()[0]
    for instance, how in enumerate(("killed", "killed in mid-transfer", "returned")):
        with ExitStack() as until_it_is_killed, owner_of(LENT_BYTES // LAYOUT.all_page_bytes) as owner:
            assert pools.attach(instance, LAYOUT, offered(owner))
            if how == "returned":
                assert pools.attach(instance + 1, LAYOUT, offered(owner, "again"))
                pools.drop(instance)
            pool = pools.get(instance + (how == "returned"))
            assert isinstance(pool, DevicePool) and torch.cuda.mem_get_info()[0] < before - LENT_BYTES
            if how == "killed in mid-transfer":
                until_it_is_killed.enter_context(held(ours.copies._stream))
            moving = pool.begin(range(LAYOUT.num_layers), copy)
            if how != "killed in mid-transfer":
                moving.wait()
            assert moving.done == (how != "killed in mid-transfer")

        assert owner.returncode == -signal.SIGKILL
        moving.wait()  # the device goes on without the peer's process
        pools.drop(instance + (how == "returned"))
        wait_for_memory(before - SLACK_BYTES)


def test_a_process_cannot_map_its_own_memory_and_says_so() -> None:
    kv = PagedKv(LAYOUT, 12, "cuda:0")
    ours = at_device(kv)
    with pytest.raises(WireError, match="cuIpcOpenMemHandle"):
        ours.ipc.open(ours.export())


def test_copies_run_beside_the_forward_stream() -> None:
    """What is given to them is done without what waits on the forward stream."""
    kv = PagedKv(LAYOUT, 12, "cuda:0")
    reader, written = DeviceReader(kv, at_device(kv).copies), copy_of(PAGES_HERE, PAGES_THERE).targets
    reader.begin(range(1), written).wait()  # memory is taken once; taking it may wait for everything
    torch.cuda._sleep(2_000_000_000)  # about a second of the current stream
    busy = torch.cuda.Event()
    busy.record()
    reading = reader.begin(range(1, 2), written)
    reading.wait()
    assert reading.done and not busy.query()
    busy.synchronize()


@pytest.mark.parametrize("backend", ["cuda_ipc", "auto", "zmq"])
def test_two_workers_on_one_device(tmp_path: Path, backend: str) -> None:
    """Real processes: the same tokens whatever brings KV, and /workers says what does."""
    flags = f"--port 0 --device cuda --dtype float32 --transfer-backend {backend} --max-total-tokens 4096"
    prompts = [[(5 * index + 3 * at) % 200 for at in range(3 + 23 * index)] for index in range(6)]
    with BatonProcess("serve", "--model", str(PROJECT / "models/story"), *flags.split(), log=tmp_path / "log") as baton:
        answers = [baton.tokens(prompt, max_tokens=16, temperature=0) for prompt in prompts]
        met = {worker["id"]: worker["transfer"] for worker in baton.workers()}
        assert met["decode-0"] == {"prefill-0": "zmq" if backend == "zmq" else "cuda_ipc"}
        assert baton.wait_for_rest()
    runner = ModelRunner.load(PROJECT / "models/story", device="cuda", dtype="float32", context_length=512)
    cluster = Cluster(runner, "1U")
    for index, prompt in enumerate(prompts):
        cluster.assign(f"r{index}", prompt, SamplingParams(max_tokens=16, temperature=0.0))
    cluster.run()
    lengths = [len(answer) for answer in answers]
    assert [cluster.answers[f"r{index}", 0].ids[: lengths[index]] for index in range(len(prompts))] == answers
    assert min(lengths) > 0
    cluster.close()
