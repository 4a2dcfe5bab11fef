"""Weights in fewer bits, against the formulas written number by number, and whole folders of them."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import quantised, rows
from model.checkpoint import Part, SafetensorsFile, open_checkpoint
from model.quantised import from_fp8, from_mxfp4
from model.runner import ModelRunner
from protocol.errors import CheckpointError
from protocol.messages_group import StepShape
from testkit.checkpoints import make_checkpoint
from tests.model.driving import Lanes, random_prompt
from tests.model.live_bytes import LiveBytes, uncounted
from tests.model.ranks import on_host

CPU = torch.device("cpu")
BLOCK = (16, 32)


def fp8_of(weight_OI: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """A weight in fp8, its scales, and the numbers that these stand for, each by itself."""
    (rows, columns), (outputs, inputs) = block, weight_OI.shape
    scales = torch.empty(-(-outputs // rows), -(-inputs // columns))
    held, exact = torch.empty(weight_OI.shape, dtype=torch.float8_e4m3fn), torch.empty(weight_OI.shape)
    for r in range(scales.shape[0]):
        for c in range(scales.shape[1]):
            place = slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns)
            scales[r, c] = weight_OI[place].abs().max() / 448 * (1 + 0.01 * (r + 2 * c))
            held[place] = (weight_OI[place] / scales[r, c]).to(torch.float8_e4m3fn)
            for i in range(*place[0].indices(outputs)):
                for j in range(*place[1].indices(inputs)):
                    exact[i, j] = held[i, j].float() * scales[r, c]
    return held, scales, exact


def mxfp4_of(shape: tuple[int, ...], chance: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Random MXFP4 of (..., inputs): blocks, scales, and the numbers by sign, exponent and fraction."""
    *lead, inputs = shape
    count, groups = math.prod(lead), inputs // 32
    blocks, scales, exact = list[int](), list[int](), list[float]()
    for _ in range(count * groups):
        scales.append(chance.randrange(118, 126))
        for _ in range(16):
            pair = [chance.randrange(16) for _ in range(2)]
            blocks.append(pair[0] + 16 * pair[1])
            for bits in pair:
                sign, exponent, fraction = -1.0 if bits & 8 else 1.0, bits >> 1 & 3, bits & 1
                size = (1 + fraction / 2) * 2.0 ** (exponent - 1) if exponent else fraction / 2
                exact.append(sign * size * 2.0 ** (scales[-1] - 127))
    return (
        torch.tensor(blocks, dtype=torch.uint8).view(*lead, groups, 16),
        torch.tensor(scales, dtype=torch.uint8).view(*lead, groups),
        torch.tensor(exact).view(shape),
    )


@pytest.mark.parametrize("at_once", [1, 70, 1 << 22])
@pytest.mark.parametrize("shape", [(32, 64), (33, 65), (5, 7), (48, 31), (1, 1)])
def test_fp8_is_each_number_times_the_scale_of_its_block(
    shape: tuple[int, int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "AT_ONCE", at_once)
    held, scales, exact = fp8_of(torch.randn(shape, generator=torch.Generator().manual_seed(1)), BLOCK)
    assert torch.equal(from_fp8(held, scales, BLOCK, (0, 0), torch.float32), exact)
    assert torch.equal(from_fp8(held, scales, BLOCK, (0, 0), torch.bfloat16), exact.bfloat16()), "rounded once"
    for start in (0, shape[0] // 2, shape[0] - 1):
        assert torch.equal(from_fp8(held[start:], scales, BLOCK, (start, 0), torch.float32), exact[start:])
    for start in (0, shape[1] // 2, shape[1] - 1):
        assert torch.equal(from_fp8(held[:, start:], scales, BLOCK, (0, start), torch.float32), exact[:, start:])


@pytest.mark.parametrize("at_once", [1, 1 << 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp4_is_exact(dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "AT_ONCE", at_once)
    blocks, scales, exact = mxfp4_of((9, 96), random.Random(2))
    assert torch.equal(from_mxfp4(blocks, scales, dtype).float(), exact)
    ends = torch.tensor([[1], [254]], dtype=torch.uint8)  # the least scale whose numbers float32 has whole, the largest
    found = from_mxfp4(torch.full((2, 1, 16), 0x21, dtype=torch.uint8), ends, torch.float32)
    assert found[:, :2].tolist() == [[0.5 * 2.0**-126, 2.0**-126], [0.5 * 2.0**127, 2.0**127]]


def in_fp8(folder: Path, to: Path) -> tuple[Path, Path]:
    """The folder with linears of its layers in fp8; and one with the numbers that these stand for."""
    tensors, plain = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        tensors[name] = plain[name] = tensor
        if name.endswith("_proj.weight"):
            tensors[name], tensors[f"{name}_scale_inv"], plain[name] = fp8_of(tensor, BLOCK)
    how = {"quant_method": "fp8", "weight_block_size": list(BLOCK), "fmt": "e4m3", "activation_scheme": "dynamic"}
    return written(folder, to / "fp8", tensors, quantization_config=how), written(folder, to / "plain", plain)


def in_mxfp4(folder: Path, to: Path) -> tuple[Path, Path]:
    """The folder with random experts in MXFP4; and one with the numbers that these stand for."""
    chance, tensors, plain = random.Random(3), dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, inputs, outputs = tensor.shape
            blocks, scales, exact = mxfp4_of((count, outputs, inputs), chance)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            plain[name] = exact.transpose(1, 2).contiguous()
        else:
            tensors[name] = plain[name] = tensor
    how = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    return written(folder, to / "mxfp4", tensors, quantization_config=how), written(folder, to / "plain", plain)


def written(like: Path, folder: Path, tensors: dict[str, Tensor], **fields: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((like / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def quantised_folders(kind: str, to: Path) -> tuple[Path, Path]:
    if kind == "fp8":
        return in_fp8(make_checkpoint(to / "made", "qwen3", intermediate_size=72), to)
    if kind == "fp8 experts":
        return in_fp8(make_checkpoint(to / "made", "minimax_m2"), to)
    return in_mxfp4(make_checkpoint(to / "made", "gpt_oss", hidden_size=64, num_hidden_layers=2), to)


KINDS = ("fp8", "fp8 experts", "mxfp4")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [rows.AT_ONCE, 300])
def test_a_quantised_folder_has_the_tokens_of_the_numbers_that_it_stands_for(
    tmp_path: Path, kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if weights are read a few rows at a time, in slices that begin within a block."""
    monkeypatch.setattr(rows, "AT_ONCE", at_once)
    folder, plain = quantised_folders(kind, tmp_path)
    for dtype in ("float32", "bfloat16"):
        few, all_bits = (ModelRunner.load(each, device="cpu", dtype=dtype) for each in (folder, plain))
        prompt = random_prompt(40, 307, 5)
        assert Lanes(few, 16).generate(prompt, 12, 16) == Lanes(all_bits, 16).generate(prompt, 12, 16)
        assert few.fingerprint() != all_bits.fingerprint()
        if dtype == "bfloat16":
            assert few.private_weight_bytes <= all_bits.private_weight_bytes + all_bits.mapped_weight_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_read_their_shares_of_a_quantised_folder(tmp_path: Path, kind: str) -> None:
    """Shares that begin within a block. The biases of experts are added once."""
    folder, _ = quantised_folders(kind, tmp_path)
    whole = ModelRunner.load(folder, device="cpu", dtype="float32")

    def logits(runner: ModelRunner, step: StepShape | None) -> Tensor:
        lanes = Lanes(runner, 16)
        inp = lanes.model_input([(lanes.lane(random_prompt(9, 307, 1), 0), 9)], [])
        return runner.forward(inp if step is None else replace(inp, step=step), lanes.kv)

    def main(ranks: Any) -> Tensor:
        runner = ModelRunner.load(folder, device="cpu", dtype="float32", collectives=ranks)
        return logits(runner, StepShape(1, (9, 9)))

    for found in on_host(2, tmp_path, main):
        torch.testing.assert_close(found, logits(whole, None), rtol=1e-4, atol=1e-4)


def large_folder(kind: str, to: Path) -> Path:
    """Some layers that are far larger than the rows that are read at a time."""
    sizes: dict[str, Any] = {"hidden_size": 512, "num_hidden_layers": 4, "head_dim": 128, "dtype": "bfloat16"}
    sizes["intermediate_size"] = 1536 if kind == "fp8" else 512
    made = make_checkpoint(to / "made", "qwen3" if kind == "fp8" else "gpt_oss", **sizes)
    tensors = load_file(made / "model.safetensors")
    if kind == "bfloat16":
        return made
    for name in [name for name in tensors if name.endswith("_proj.weight" if kind == "fp8" else "_proj")]:
        if kind == "fp8":
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = torch.ones([-(-size // 128) for size in tensors[name].shape])
        else:
            count, inputs, outputs = tensors.pop(name).shape
            tensors[f"{name}_blocks"] = torch.full((count, outputs, inputs // 32, 16), 0x21, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.full((count, outputs, inputs // 32), 120, dtype=torch.uint8)
    how = {"quant_method": kind} | ({"weight_block_size": [128, 128]} if kind == "fp8" else {})
    return written(made, to / kind, tensors, quantization_config=how)


@pytest.mark.parametrize("available", [1 << 40, 1 << 16], ids=["packed", "not packed"])
@pytest.mark.parametrize("kind", ["fp8", "mxfp4", "bfloat16"])
def test_a_load_takes_no_more_than_what_is_served_and_a_tenth(
    tmp_path: Path, kind: str, available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a quantised folder, and of one whose experts lie in another order. Bytes of tensors, not of the process."""
    folder = large_folder(kind, tmp_path)
    monkeypatch.setattr("model.packing.available_bytes", lambda _: available)
    monkeypatch.setattr(SafetensorsFile, "_view", uncounted(SafetensorsFile._view))
    with LiveBytes() as live:
        runner = ModelRunner.load(folder, device="cpu", dtype="bfloat16")
    served = runner.private_weight_bytes + runner.mapped_weight_bytes
    assert runner.packing.packed == (available == 1 << 40)
    assert served > 25_000_000 and live.now > 0.9 * runner.private_weight_bytes, "the weights were counted"
    assert live.peak < 1.1 * served, f"{live.peak / served:.2f} of the served weights"


def test_parts_are_read_and_no_more(tmp_path: Path) -> None:
    held, scales, exact = fp8_of(torch.randn(40, 70), BLOCK)
    save_file({"w.weight": held, "w.weight_scale_inv": scales}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path, check_values=True, fp8_block=BLOCK)
    for part, place in ((Part(0, 10, 25), exact[10:35]), (Part(1, 30, 33), exact[:, 30:63]), (None, exact)):
        assert torch.equal(checkpoint.take("w.weight", (40, 70), torch.float32, CPU, part), place)
    assert checkpoint.taken["w.weight"].numbers == 2800 and not checkpoint.taken["w.weight"].is_view


FAULTS: list[tuple[str, Callable[[dict[str, Tensor]], Any], str]] = [
    (
        "fp8",
        lambda t: t.pop("model.layers.0.mlp.up_proj.weight_scale_inv"),
        "weight_scale_inv of shape .5, 2. is",
    ),
    (
        "fp8",
        lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(4, 2)}),
        "up_proj.weight_scale_inv: got shape .4, 2., config.json implies .5, 2.",
    ),
    (
        "fp8",
        lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(5, 2).half()}),
        "up_proj.weight_scale_inv: got dtype F16, supported: F32, BF16",
    ),
    (
        "fp8",
        lambda t: t.update({"model.norm.weight": torch.ones(48).to(torch.float8_e5m2)}),
        "model.norm.weight: got dtype F8_E5M2, supported",
    ),
    (
        "mxfp4",
        lambda t: t.update({"model.layers.0.mlp.experts.down_proj_scales": torch.ones(8, 64, 2, dtype=torch.uint8)}),
        "down_proj_scales: got shape .8, 64, 2., config.json implies .8, 64, 1.",
    ),
    (
        "mxfp4",
        lambda t: t.update({"model.layers.0.mlp.experts.down_proj_scales": torch.ones(8, 64, 1)}),
        "down_proj_scales: got dtype F32, supported: U8",
    ),
    ("mxfp4", lambda t: t.pop("model.layers.1.mlp.experts.gate_up_proj_blocks"), "gate_up_proj_blocks of shape"),
    (
        "mxfp4",
        lambda t: t.pop("model.layers.1.mlp.experts.down_proj_scales"),
        "down_proj_scales of shape .8, 64, 1. is",
    ),
    (
        "mxfp4",
        lambda t: t.update({"model.layers.0.mlp.experts.down_proj_blocks": torch.ones(8, 64, 1, 15).byte()}),
        "down_proj_blocks: got shape .8, 64, 1, 15., config.json implies .8, 64, 1, 16.",
    ),
    (
        "mxfp4",
        lambda t: t.update({"model.layers.0.mlp.experts.down_proj_blocks": torch.ones(8, 64, 1, 16).char()}),
        "down_proj_blocks: got dtype I8, supported: U8",
    ),
    (
        "mxfp4",
        lambda t: t.update({"model.layers.1.self_attn.sinks": torch.ones(5)}),
        "self_attn.sinks: got shape .5., config.json implies .4.",
    ),
    (
        "mxfp4",
        lambda t: t.update({"model.layers.1.self_attn.sinks": torch.ones(4).int()}),
        "self_attn.sinks: got dtype I32, supported: F32, BF16, F16",
    ),
    (
        "fp8",
        lambda t: t.update({"model.layers.1.self_attn.q_proj.weight": torch.ones(60, 48).to(torch.float8_e4m3fn)}),
        "q_proj.weight: got shape .60, 48., config.json implies .64, 48.",
    ),
    (
        "fp8",
        lambda t: t.update({"model.layers.1.self_attn.q_norm.weight": torch.ones(20)}),
        "q_norm.weight: got shape .20., config.json implies .16.",
    ),
]


@pytest.mark.parametrize("kind, change, sentence", FAULTS)
def test_what_does_not_fit_is_named(
    tmp_path: Path, kind: str, change: Callable[[dict[str, Tensor]], Any], sentence: str
) -> None:
    folder, _ = quantised_folders(kind, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=sentence):
        ModelRunner.load(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("kind, dtype", [("fp8", "F8_E4M3"), ("mxfp4", "gate_up_proj of shape")])
def test_quantised_weights_that_the_config_does_not_tell_of_are_named(tmp_path: Path, kind: str, dtype: str) -> None:
    folder, plain = quantised_folders(kind, tmp_path)
    fields = json.loads((folder / "config.json").read_text())
    how = fields.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=dtype):
        ModelRunner.load(folder, device="cpu", dtype="float32")
    if kind == "mxfp4":  # and the other way round
        (plain / "config.json").write_text(json.dumps(fields | {"quantization_config": how}))
        with pytest.raises(CheckpointError, match=r"gate_up_proj_blocks of shape .* is missing"):
            ModelRunner.load(plain, device="cpu", dtype="float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_of_which_a_scale_is_no_number_are_found(tmp_path: Path, dtype: str) -> None:
    """255 stands for no number; the largest scale times 6 is more than float32 has."""
    folder, _ = quantised_folders("mxfp4", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    tensors[f"{name}_scales"][3, 7, 0], tensors[f"{name}_blocks"][3, 7, 0] = 255, 0x22
    save_file(tensors, folder / "model.safetensors")
    ModelRunner.load(folder, device="cpu", dtype=dtype)
    with pytest.raises(CheckpointError, match=r"down_proj_blocks: 32 of 2048 values are NaN or infinite"):
        ModelRunner.load(folder, device="cpu", dtype=dtype, check_weights=True)


def test_scales_that_are_no_numbers_are_found(tmp_path: Path) -> None:
    folder, _ = quantised_folders("fp8", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale_inv"][1, 1] = float("inf")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_proj.weight_scale_inv: 1 of 10 values are NaN or infinite"):
        ModelRunner.load(folder, device="cpu", dtype="float32", check_weights=True)
