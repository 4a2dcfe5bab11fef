"""A token of a model with experts has the same bits in any batch: alone, beside others, decoded, or in a chunk."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.checkpoint import Checkpoint
from model.cpu_build import NoKernels
from model.cpu_experts import CpuExperts
from model.cpu_kernels import load_kernels
from model.cpu_products import Threads, in_place
from model.experts import Experts, Router, best
from model.fake import FakeRunner
from model.linear import Linear, ParallelLinears
from model.mlp import Mlp
from model.runner import ModelRunner
from runtime.model_parts import RouterConfig
from testkit.checkpoints import Architecture, make_checkpoint
from tests.model.driving import Lane, Lanes, random_prompt
from tests.model.routing import numbers

FAMILIES: tuple[Architecture, ...] = ("qwen3_moe", "mixtral", "minimax_m2", "glm4_moe", "gpt_oss")
LENGTHS = (37, 5, 18)
VOCAB = 307
HOW = {  # the dtype of the weights, and how much memory there seems to be
    "float32": ("float32", 1 << 40),
    "packed bfloat16": ("bfloat16", 1 << 40),
    "bfloat16 in place": ("bfloat16", 1 << 16),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("row_exact")


@pytest.fixture(scope="module", params=[(arch, how) for arch in FAMILIES for how in HOW], ids=" ".join)
def runner(request: pytest.FixtureRequest, folders: Path) -> ModelRunner:
    arch, how = request.param
    dtype, available = HOW[how]
    folder = folders / f"{arch}-{dtype}"
    if not folder.exists():
        make_checkpoint(folder, arch, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.packing.available_bytes", lambda _: available)
        loaded = ModelRunner.load(folder, device="cpu", dtype=dtype)
    if dtype == "bfloat16" and not loaded.packing.row_exact:
        pytest.skip("this CPU has no instructions for the products")
    assert loaded.packing.packed == (how == "packed bfloat16")
    return loaded


def kv_of(lanes: Lanes, lane: Lane) -> Tensor:
    """K and V of the lane's tokens in every layer, in the order of tokens."""
    slots = [(lane.pages[at // lanes.page_size], at % lanes.page_size) for at in range(lane.done)]
    pages, offsets = (torch.tensor(column) for column in zip(*slots, strict=True))
    layers = range(lanes.kv.layout.num_layers)
    return torch.stack([lanes.kv.layer(layer).transpose(1, 2)[pages, offsets] for layer in layers])


def alone(runner: ModelRunner, tokens: list[int], page_size: int) -> tuple[Tensor, Tensor]:
    """The logits behind the last token, and the KV of all, computed one token after the other."""
    lanes = Lanes(runner, page_size, poison=True)
    lane = lanes.lane(tokens, 1)
    while lane.done < len(tokens):
        lanes.step([], [lane])
    return lane.logits[0], kv_of(lanes, lane)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from((1, 16)), st.integers(1, 3), st.integers(0, 2**31))
def test_any_split_of_texts_into_launches_gives_equal_bits(
    runner: ModelRunner, page_size: int, threads: int, seed: int
) -> None:
    """Each launch mixes chunks of some texts, of any size, with decodes of others. The number of threads varies."""
    chance = Random(seed)
    texts = [random_prompt(length, VOCAB, length) for length in LENGTHS]
    expected = [alone(runner, text, page_size) for text in texts]
    lanes = Lanes(runner, page_size, poison=True)
    made = [lanes.lane(text, 1) for text in texts]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        while waiting := [lane for lane in made if not lane.logits]:
            sizes = [min(chance.choice((0, 1, 1, 4, 17, 40)), len(lane.tokens) - lane.done) for lane in waiting]
            chunks = [(lane, size) for lane, size in zip(waiting, sizes, strict=True) if size > 1]
            decodes = [lane for lane, size in zip(waiting, sizes, strict=True) if size == 1]
            if chunks or decodes:
                lanes.step(chunks, decodes)
    finally:
        torch.set_num_threads(before)
    for lane, (logits_V, kv) in zip(made, expected, strict=True):
        assert torch.equal(lane.logits[0], logits_V) and torch.equal(kv_of(lanes, lane), kv)


def test_experts_are_in_c_and_weights_stay_in_the_file_unless_they_are_packed(runner: ModelRunner) -> None:
    feeds = [layer.feed for layer in runner.decoder.layers]
    assert runner.packing.row_exact and any(isinstance(feed, CpuExperts) for feed in feeds)
    if runner.packing.packed:
        assert runner.mapped_weight_bytes == 0
        return
    taken, item_bytes = runner.checkpoint.taken, getattr(torch, runner.dtype).itemsize
    stacked = sum(
        of.numbers * item_bytes
        for name, of in taken.items()
        if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    )
    assert (stacked > 0) == (runner.config.architecture == "gpt_oss")  # the file has inputs before outputs
    others = runner.private_weight_bytes - stacked  # those that were put in another order
    assert others < 0.2 * runner.mapped_weight_bytes


def test_a_model_without_experts_and_a_machine_without_a_compiler_make_no_such_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = ModelRunner.load(make_checkpoint(tmp_path / "dense", "qwen3"), device="cpu", dtype="float32")
    assert not dense.packing.row_exact and isinstance(dense.decoder.head, Linear)

    def refuse(*_: object) -> None:
        raise NoKernels("there is no C compiler (cc, gcc or clang) here")

    monkeypatch.setattr("model.packing.load_kernels", refuse)
    plain = ModelRunner.load(make_checkpoint(tmp_path / "experts", "qwen3_moe"), device="cpu", dtype="float32")
    assert not plain.packing.row_exact and isinstance(plain.decoder.layers[-1].feed, Experts)


def mapped_kib(folder: Path) -> int:
    """KiB of the folder's files that are in this process's memory."""
    found, in_folder = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            in_folder = line.endswith(f"{folder}/model.safetensors")
        elif in_folder and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_packed_model_does_not_keep_what_it_has_read_of_the_file(tmp_path: Path) -> None:
    """Else a worker would hold its weights twice when it has loaded them. At most some linears of them, at any time."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 8,
        "mlp_only_layers": [],
    }
    folder = make_checkpoint(tmp_path, "qwen3_moe", dtype="bfloat16", **sizes)
    size_kib = (folder / "model.safetensors").stat().st_size >> 10

    held = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model.packing.available_bytes", lambda _: 1 << 40)
        forget = Checkpoint.forget

        def noted(checkpoint: Checkpoint, name: str) -> None:
            held.append(mapped_kib(folder))
            forget(checkpoint, name)

        patch.setattr(Checkpoint, "forget", noted)
        runner = ModelRunner.load(folder, device="cpu", dtype="bfloat16")
    if not runner.packing.packed:
        pytest.skip("nothing is packed here")
    linears = sum(name.endswith("proj.weight") for name in runner.checkpoint)
    assert len(held) == linears and 0.01 * size_kib < max(held) < 0.1 * size_kib
    assert mapped_kib(folder) < 0.1 * size_kib
    assert len(Lanes(runner, 16).generate(random_prompt(9, VOCAB, 1), 4)) == 4


# ---- a near tie ----


def near_ties(weight_XE: Tensor, x_TE: Tensor, count: int, gap: float) -> list[Tensor]:
    """For each token the router's weights, changed so that its last expert and the best other one lie `gap` apart.

    One number of the other expert's weights moves its score there: that with the smallest input, so that float32 can
    hold the score.
    """
    made = []
    for x_E in x_TE:
        scores_X = weight_XE.double() @ x_E.double()
        order = best(scores_X[None], count + 1)[0]
        last, other = int(order[-2]), int(order[-1])
        changed_XE = weight_XE.clone()
        for at in x_E.abs().argsort()[:8].tolist():
            missing = scores_X[last] - gap - changed_XE[other].double() @ x_E.double()
            changed_XE[other, at] += (missing / x_E[at].double()).float()
        made.append(changed_XE)
    return made


def test_a_near_tie_is_decided_alike_beside_any_rows() -> None:
    """Scores 1e-7 apart, where torch's product chooses by the number of rows."""
    size, count, chosen = 1024, 32, 4
    weight_XE, x_TE = numbers(count, size, seed=1) / 32, numbers(60, size, seed=2)
    kernels = load_kernels(FakeRunner(head_dim=16).config, torch.float32, "float32")
    linear = in_place(Linear(numbers(8, size, seed=3)), kernels.library, Threads())
    down = in_place(Linear(numbers(size, 8, seed=4)), kernels.library, Threads())
    mlp = Mlp(ParallelLinears((linear, linear)), down)

    num_flipped = 0
    for row, changed_XE in enumerate(near_ties(weight_XE, x_TE, chosen, 1e-7)):
        by_torch = [best(F.linear(x_RE, changed_XE), chosen) for x_RE in (x_TE[row : row + 1], x_TE)]
        num_flipped += set(by_torch[0][0].tolist()) != set(by_torch[1][row].tolist())

        router = Router(RouterConfig(chosen), changed_XE.double(), None)
        in_c = CpuExperts.of(kernels, Experts(router, (mlp,) * count, None))
        assert in_c is not None
        together = in_c.route(x_TE)
        for start, end in ((row, row + 1), (max(row - 2, 0), row + 1), (row, 60)):
            apart = in_c.route(x_TE[start:end])
            assert all(torch.equal(one, whole[start:end]) for one, whole in zip(apart, together, strict=True))
    if not num_flipped:
        pytest.skip("torch's product has the same bits for any number of rows here")
