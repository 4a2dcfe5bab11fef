"""A forward of no tokens: every runner takes it by shape, reports every layer, and leaves the KV as it was."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.graphs import CudaCapture, GraphedRunner
from model.inputs import ModelInput
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import ModelRunner, Runner
from tests.checkpoints import make_checkpoint
from tests.doubles.hash_model import FakeRunner

NUM_PAGES = 6
ON_THE_DEVICE = [pytest.param("cuda, triton", marks=pytest.mark.gpu), pytest.param("cuda, fake", marks=pytest.mark.gpu)]
RUNNERS: dict[str, Callable[[Path], Runner]] = {
    "fake": lambda _: FakeRunner(vocab_size=307),
    "torch's operations": lambda folder: ModelRunner.load(folder, device="cpu", cpu_kernels=False),
    "C kernels": lambda folder: ModelRunner.load(folder, device="cpu"),
    "packed bfloat16": lambda folder: ModelRunner.load(folder, device="cpu", dtype="bfloat16"),
    "float16": lambda folder: ModelRunner.load(folder, device="cpu", dtype="float16"),
    "cuda, triton": lambda folder: ModelRunner.load(folder, device="cuda"),
    "cuda, fake": lambda _: FakeRunner(vocab_size=307, device=torch.device("cuda")),
}
ON_THE_CPU = list(RUNNERS)[:5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "qwen3")


def idle(table_width: int, device: torch.device) -> ModelInput:
    """No chunks, no decodes, no wanted rows. The page table is (0, table_width)."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=device)

    return ModelInput(empty(0), empty(0), empty(0), empty(0, table_width), empty(0), (), (), 0, 0, empty(0))


def bytes_of(kv: PagedKv, first_page: int = 0) -> list[bytes]:
    """The pages from `first_page` of every layer, and of its twin if there is one."""
    layers = range(kv.layout.num_layers)
    own = [kv.layer(layer)[first_page:].contiguous().view(torch.uint8).cpu().numpy().tobytes() for layer in layers]
    if isinstance(kv, MirroredKv):
        own += [bytes(kv.page_bytes_view(layer, first_page, kv.num_pages - first_page)) for layer in layers]
    return own


def filled(memory: type[PagedKv], runner: Runner) -> PagedKv:
    """KV memory in which every byte says where it is."""
    kv = memory(runner.kv_layout(4), NUM_PAGES, runner.device)
    kv.device_bytes.copy_(torch.arange(kv.device_bytes.numel()) % 251)
    return kv


@pytest.mark.parametrize("memory", [PagedKv, MirroredKv])
@pytest.mark.parametrize("table_width", [0, 3])
@pytest.mark.parametrize("name", [*ON_THE_CPU, *ON_THE_DEVICE])
def test_it_reports_every_layer_and_writes_nothing(
    name: str, table_width: int, memory: type[PagedKv], folder: Path
) -> None:
    runner = RUNNERS[name](folder)
    kv = filled(memory, runner)
    before, seen = bytes_of(kv), list[int]()
    logits_LV = runner.forward(idle(table_width, runner.device), kv, seen.append)
    assert logits_LV.shape == (0, 307) and logits_LV.dtype == torch.float32
    assert seen == list(range(kv.layout.num_layers))
    assert bytes_of(kv) == before


@pytest.mark.parametrize("table_width", [0, 3])
@pytest.mark.parametrize("name", [*ON_THE_CPU, *ON_THE_DEVICE])
def test_a_graph_of_padding_is_replayed(name: str, table_width: int, folder: Path) -> None:
    """But a forward that reports its layers runs eagerly."""
    own = RUNNERS[name](folder)
    runner = GraphedRunner(own, CudaCapture() if own.device.type == "cuda" else lambda run: run)
    kv = PagedKv(runner.kv_layout(4), NUM_PAGES, runner.device)
    runner.capture(kv, 3, NUM_PAGES - 1)
    kv.layer(1)[1:] = 0.5
    before, seen = bytes_of(kv, first_page=1), list[int]()
    for num_replays, on_layer in ((1, None), (1, seen.append), (2, None)):
        logits_LV = runner.forward(idle(table_width, runner.device), kv, on_layer)
        assert logits_LV.shape == (0, 307) and runner.num_replays == num_replays
    assert seen == list(range(kv.layout.num_layers)) and bytes_of(kv, first_page=1) == before
