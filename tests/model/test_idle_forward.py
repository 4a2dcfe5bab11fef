"""A forward of no tokens: runners and drafts take it by shape, report every layer, and leave the KV as it was."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model.cuda_capture import CudaCapture
from model.draft import first_layer
from model.graphs import GraphedDraft, GraphedRunner
from model.linear import Linear, pack
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner, Runner
from testkit.checkpoints import make_checkpoint
from tests.doubles.hash_model import FakeRunner
from tests.drafts import add_mtp, make_draft
from tests.model.driving import idle

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
@pytest.mark.parametrize("name", [*ON_THE_CPU, ON_THE_DEVICE[0]])  # the fake reads sizes back: no graph takes that
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


ALGORITHMS = ("eagle", "eagle3", "mtp")


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DraftSource]:
    """Drafts for one model, by their algorithms; the folder of `mtp` is the model's own."""
    root = tmp_path_factory.mktemp("drafts")
    target = make_checkpoint(root / "target", "qwen3")
    add_mtp(target, 2)
    own = {each: DraftSource(each, make_draft(root / each, target, each, "qwen3")) for each in ("eagle", "eagle3")}
    return {**own, "mtp": DraftSource("mtp", target, 2)}


def with_draft(drafts: dict[str, DraftSource], algorithm: str, *, cpu_kernels: bool = True) -> ModelRunner:
    return ModelRunner.load(
        drafts["mtp"].folder, device="cpu", dtype="float32", draft=drafts[algorithm], cpu_kernels=cpu_kernels
    )


@pytest.mark.parametrize("attends", [True, False])
@pytest.mark.parametrize("cpu_kernels", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_draft_reads_no_tokens(
    algorithm: str, cpu_kernels: bool, attends: bool, drafts: dict[str, DraftSource]
) -> None:
    """Its layers are reported behind those of the model. Without `attends` it only writes."""
    runner = with_draft(drafts, algorithm, cpu_kernels=cpu_kernels)
    kv, draft, inp, seen = filled(PagedKv, runner), runner.draft, idle(3, runner.device), list[int]()
    assert draft is not None
    before = bytes_of(kv)
    logits_LV, features_TF = runner.forward_with_features(inp, kv, seen.append)
    hidden_TE = draft.fuse(features_TF)
    for layer in range(draft.num_layers if attends else 1):
        hidden_TE = draft.run_layer(layer, inp, hidden_TE, kv, seen.append, attends=attends)
    assert logits_LV.shape == (0, 307) and hidden_TE.shape == (0, draft.hidden_size)
    assert draft.logits(hidden_TE).shape == (0, 307)
    assert seen == list(range(runner.config.num_layers + (draft.num_layers if attends else 1)))
    assert bytes_of(kv) == before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_graphs_of_a_draft_are_replayed(algorithm: str, drafts: dict[str, DraftSource]) -> None:
    runner = GraphedRunner(with_draft(drafts, algorithm), lambda run: run)
    kv, draft = PagedKv(runner.kv_layout(4), NUM_PAGES, runner.device), runner.draft
    assert isinstance(draft, GraphedDraft)
    runner.capture(kv, 3, NUM_PAGES - 1, 4)
    kv.layer(1)[1:] = 0.5
    before, inp = bytes_of(kv, first_page=1), idle(0, runner.device)
    logits_LV, features_TF = runner.forward_with_features(inp, kv)
    proposals_LV, hidden_LE = first_layer(draft, inp, draft.fuse(features_TF), kv)
    draft.run_layer(0, inp, hidden_LE, kv, attends=False)
    assert logits_LV.shape == (0, 307) and proposals_LV.shape[0] == hidden_LE.shape[0] == 0
    first, *_, writes = draft.graphs
    assert runner.num_replays == first.num_replays == writes.num_replays == 1
    assert bytes_of(kv, first_page=1) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_linear_of_no_rows(has_bias: bool, dtype: torch.dtype) -> None:
    """Packed for oneDNN, where this CPU can, or not."""
    plain = Linear(torch.ones(24, 16, dtype=dtype), torch.ones(24, dtype=dtype) if has_bias else None)
    for linear in (plain, pack(plain)):
        x_TI, residual_TO = torch.empty(0, 16, dtype=dtype), torch.empty(0, 24, dtype=dtype)
        assert linear(x_TI).shape == linear.added_to(residual_TO, x_TI).shape == (0, 24)
        assert linear(x_TI).dtype == dtype
