"""What a runner promises besides the right tokens: layers reported in time, idle batches, layouts, merged weights."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.kv_sizing import worth_packing
from model.linear import Linear, PackedLinear, can_pack, pack, parallel_linears
from model.passes import Passes, TorchPasses
from model.runner import ModelRunner, Runner, choose_device
from protocol.errors import ConfigError
from protocol.kv_layout import KvLayout
from testkit.checkpoints import ARCHITECTURES, make_checkpoint
from tests.model.driving import Lanes, random_prompt


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return ModelRunner.load(make_checkpoint(tmp_path_factory.mktemp("model"), "qwen3"), device="cpu")


def test_layers_are_reported_once_their_kv_is_written(runner: ModelRunner) -> None:
    lanes = Lanes(runner, 4)
    lane = lanes.lane(random_prompt(6, 307, 0), 1)
    seen: list[tuple[int, list[bool]]] = []

    def on_layer(layer: int) -> None:
        written = [bool(lanes.kv.layer(other)[lane.pages[0]].all()) for other in range(3)]
        seen.append((layer, written))

    runner.forward(lanes.model_input([(lane, 6)], []), lanes.kv, on_layer)
    assert seen == [(0, [True, False, False]), (1, [True, True, False]), (2, [True, True, True])]


def test_only_wanted_rows_are_computed(runner: ModelRunner) -> None:
    lanes = Lanes(runner, 4)
    lane = lanes.lane(random_prompt(6, 307, 0), 1)
    inp = lanes.model_input([(lane, 6)], [])
    everything = vars(inp)
    rows = {}
    for wanted in ([], [5], [5, 5, 2]):
        indices = torch.tensor(wanted, dtype=torch.int64)
        rows[len(wanted)] = runner.forward(type(inp)(**{**everything, "logit_indices_L": indices}), lanes.kv)
    assert [rows[count].shape for count in (0, 1, 3)] == [(0, 307), (1, 307), (3, 307)]
    assert torch.allclose(rows[3][0], rows[1][0], atol=1e-4) and torch.equal(rows[3][0], rows[3][1])
    assert not torch.allclose(rows[3][2], rows[3][0], atol=1e-2)


def test_an_unfinished_chunk_gives_no_rows(runner: ModelRunner) -> None:
    lanes = Lanes(runner, 4)
    lane = lanes.lane(random_prompt(6, 307, 0), 1)
    assert runner.forward(lanes.model_input([(lane, 4)], []), lanes.kv).shape == (0, 307)


def test_layout_and_fingerprint(runner: ModelRunner) -> None:
    as_runner: Runner = runner
    assert as_runner.kv_layout(16) == KvLayout.uniform(3, 2, 16, 16, "float32")
    assert as_runner.fingerprint() == runner.fingerprint()
    assert as_runner.fingerprint().facts["layers"] == "[[0, 3]]"


@pytest.mark.parametrize("bias", [True, False])
def test_merged_linears_compute_the_same(bias: bool) -> None:
    x = torch.randn(5, 8)
    linears = [Linear(torch.randn(n, 8), torch.randn(n) if bias else None) for n in (6, 2, 4)]
    merged, apart = (parallel_linears(linears, merge=merge)(x) for merge in (True, False))
    assert [part.shape for part in merged] == [(5, 12)]
    assert [part.shape for part in apart] == [(5, 6), (5, 2), (5, 4)]
    torch.testing.assert_close(torch.cat(merged, dim=-1), torch.cat(apart, dim=-1))


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [1, 16])
def test_the_device_gives_the_tokens_of_the_cpu(tmp_path: Path, page_size: int) -> None:
    for arch in ARCHITECTURES:
        folder = make_checkpoint(tmp_path / arch, arch)
        prompt = random_prompt(70, 307, 2)
        tokens = [
            Lanes(ModelRunner.load(folder, device=device, dtype="float32"), page_size).generate(prompt, 24, 32)
            for device in ("cpu", "cuda")
        ]
        assert tokens[0] == tokens[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_compute_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for bias in (None, torch.randn(48).to(dtype)):
        linear = Linear(torch.randn(48, 32).to(dtype), bias)
        packed = pack(linear)
        assert isinstance(packed, PackedLinear) == can_pack(linear.weight_OI)
        for rows in (1, 3, 16, 200):
            x_TI, residual_TO = torch.randn(rows, 32).to(dtype), torch.randn(rows, 48).to(dtype)
            torch.testing.assert_close(packed(x_TI), linear(x_TI))
            # Packed, the sum is rounded once, not also the product: where the two cancel, that is all that is left.
            slack = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(
                packed.added_to(residual_TO, x_TI),
                linear.added_to(residual_TO, x_TI),
                rtol=slack,
                atol=slack * float(linear(x_TI).abs().max()),
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_with_a_norm_gives_the_sum_and_its_norm(dtype: torch.dtype) -> None:
    passes, plain = TorchPasses(1, 48, 1e-6), Linear(torch.randn(48, 32).to(dtype), torch.randn(48).to(dtype))
    x_TI, residual_TO, weight_O = (torch.randn(*shape).to(dtype) for shape in ((5, 32), (5, 48), (48,)))
    for linear in (plain, pack(plain)):
        sum_TO, normed_TO = linear.added_norm(residual_TO, x_TI, passes, weight_O)
        assert torch.equal(sum_TO, linear.added_to(residual_TO, x_TI))
        assert torch.equal(normed_TO, passes.rms_norm(sum_TO, weight_O))


def test_only_bfloat16_on_a_cpu_is_packed_and_only_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path / "m", "qwen3")
    shared = ModelRunner.load(folder, device="cpu", dtype="float32")
    assert not shared.packing.packed and shared.mapped_weight_bytes > 0 and shared.private_weight_bytes == 0
    own = ModelRunner.load(folder, device="cpu", dtype="bfloat16")
    assert own.packing.packed and own.mapped_weight_bytes == 0
    numbers = shared.mapped_weight_bytes // 4
    of_linears = sum(
        math.prod(shape)
        for name, (_, shape) in own.checkpoint.tensors.items()
        if name.endswith(("proj.weight", "lm_head.weight"))
    )
    in_float32 = (numbers - of_linears if own.packing.narrow else numbers) if own.packing.widened else 0
    assert own.private_weight_bytes == 2 * numbers + 2 * in_float32
    monkeypatch.setattr("model.packing.available_bytes", lambda _: 1 << 16)
    tight = ModelRunner.load(folder, device="cpu", dtype="bfloat16")
    assert not tight.packing.packed and not tight.packing.widened and isinstance(tight.decoder.head, Linear)


@pytest.mark.parametrize("page_size", [1, 16])
def test_bfloat16_is_computed_in_float32_where_the_cpu_has_no_instructions_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    """The pages stay bfloat16, so that such a worker can exchange KV with any other; chunks and decodes read them."""
    folder = make_checkpoint(tmp_path / "m", "qwen3")
    monkeypatch.setattr("model.packing.has_fast_bfloat16", lambda: False)
    runner = ModelRunner.load(folder, device="cpu", dtype="bfloat16")
    assert runner.packing.widened and runner.dtype == "bfloat16" and runner.decoder.embedding_VE.dtype == torch.float32
    assert runner.kv_layout(page_size).dtype == "bfloat16"
    prompt = random_prompt(70, 307, 2)
    whole, chunked = (Lanes(runner, page_size).generate(prompt, 24, chunk) for chunk in (None, 32))
    exact = Lanes(ModelRunner.load(folder, device="cpu", dtype="float32"), page_size).generate(prompt, 24, None)
    assert whole == chunked == exact  # the margins of this checkpoint are wider than what rounding of KV moves


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_last_layer_computes_what_is_wanted_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Logits of a few rows are those of all rows; nobody wants any of a chunk in the middle."""
    monkeypatch.setattr("model.packing.has_fast_bfloat16", lambda: False)
    runner = ModelRunner.load(make_checkpoint(tmp_path / "m", "qwen3"), device="cpu", dtype=dtype)
    lanes = Lanes(runner, 16)
    lane = lanes.lane(random_prompt(20, 307, 0), 1)
    inp = lanes.model_input([(lane, 20)], [])
    last, rows = runner.decoder.layers[-1], list[int]()

    class Counted:
        """The output projection of the last layer."""

        def __call__(self, x_TI: Tensor) -> Tensor:
            return last.mixer.output(x_TI)

        def added_to(self, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
            return last.mixer.output.added_to(residual_TO, x_TI)

        def added_norm(
            self, residual_TO: Tensor, x_TI: Tensor, passes: Passes, weight_O: Tensor
        ) -> tuple[Tensor, Tensor]:
            rows.append(x_TI.shape[0])
            return last.mixer.output.added_norm(residual_TO, x_TI, passes, weight_O)

    layers = (*runner.decoder.layers[:-1], replace(last, mixer=replace(last.mixer, output=Counted())))
    counted = replace(runner, decoder=replace(runner.decoder, layers=layers, at_once=None))
    everything = counted.forward(replace(inp, logit_indices_L=torch.arange(20)), lanes.kv)
    for wanted in ([19], [3, 3, 0], []):
        found = counted.forward(replace(inp, logit_indices_L=torch.tensor(wanted, dtype=torch.int64)), lanes.kv)
        torch.testing.assert_close(found, everything[wanted])
    assert rows == [20, 1, 3, 0]


def test_packing_is_worth_a_tenth_of_memory_for_all_workers() -> None:
    assert worth_packing(50, 1000, 2)
    assert not worth_packing(51, 1000, 2)


@pytest.mark.parametrize("name, index", [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("auto", 0)])
def test_a_worker_computes_on_the_gpu_that_it_is_given(name: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of CUDA names no device means the same one."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device(name) == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)]


@pytest.mark.parametrize(
    "name, count, says",
    [
        ("cuda:2", 2, "device: got 'cuda:2', but torch finds 2 CUDA devices here"),
        ("cuda:0", 0, "device: got 'cuda:0', but torch finds no CUDA device here"),
        ("cuda", 0, "device: got 'cuda', but torch finds no CUDA device here"),
        ("mps", 0, "device: got 'mps', expected auto, cpu or cuda"),
    ],
)
def test_a_gpu_that_is_not_there(name: str, count: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ConfigError) as caught:
        choose_device(name)
    assert caught.value.message == says
