"""Each linear says how it is cut: the shares of all ranks are the whole tensor, and nothing but feeds is shared out."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from model.checkpoint import Checkpoint, Taken, open_checkpoint
from model.collectives import Collectives
from model.passes import TorchPasses
from model.transformer import load_decoder
from model.weights import Cut, Weights
from protocol.errors import CheckpointError
from protocol.messages_group import StepShape
from runtime.model_config import load_config
from runtime.model_parts import ExpertsConfig
from testkit.checkpoints import DENSE, OF_EXPERTS, Architecture, make_checkpoint

CPU = torch.device("cpu")


class Place:
    """A rank that computes nothing."""

    doing = ""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """Never called."""
        raise NotImplementedError

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """Never called."""
        raise NotImplementedError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("cuts") / "model", "llama")


def weights_of(checkpoint: Checkpoint, folder: Path, ranks: Collectives | None) -> Weights:
    return Weights(checkpoint, load_config(folder), torch.float32, CPU, None, ranks)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 5), outputs=st.integers(1, 4), inputs=st.integers(1, 4), bias=st.booleans())
def test_the_shares_of_all_ranks_are_the_whole_linear(
    folder: Path, size: int, outputs: int, inputs: int, bias: bool
) -> None:
    weight_OI, bias_O = torch.randn(size * outputs, size * inputs), torch.randn(size * outputs)
    with tempfile.TemporaryDirectory() as other:
        save_file({"a.weight": weight_OI, "a.bias": bias_O}, Path(other) / "model.safetensors")
        checkpoint = open_checkpoint(Path(other))

    for cut in Cut:
        has_bias = bias and cut is not Cut.INPUTS
        shares = [
            weights_of(checkpoint, folder, Place(rank, size)).linear("a", *weight_OI.shape, bias=has_bias, cut=cut)
            for rank in range(size)
        ]
        if cut is Cut.WHOLE:
            assert all(torch.equal(share.weight_OI, weight_OI) for share in shares)
        else:
            assert torch.equal(torch.cat([share.weight_OI for share in shares], dim=cut), weight_OI)
        biases = [share.bias_O for share in shares if share.bias_O is not None]
        assert len(biases) == (size if has_bias else 0)
        assert all(torch.equal(each, bias_O) for each in biases if cut is Cut.WHOLE)
        assert not biases or cut is Cut.WHOLE or torch.equal(torch.cat(biases), bias_O)


@pytest.mark.parametrize("arch", DENSE)
def test_only_gate_up_and_down_are_shared_out(tmp_path: Path, arch: Architecture) -> None:
    more: dict[str, Any] = {"mlp_bias": True, "attention_bias": True} if arch == "llama" else {}
    make_checkpoint(tmp_path, arch, **more)
    whole, share = taken(tmp_path, None), taken(tmp_path, Place(1, 4))
    assert whole.keys() == share.keys() and len(whole) > 25
    shared = {name for name in whole if share[name] != whole[name]}
    ends = ("gate_proj.weight", "up_proj.weight", "down_proj.weight", "gate_proj.bias", "up_proj.bias")
    assert shared == {name for name in whole if name.startswith("model.layers.") and name.endswith(ends)}
    assert all(4 * share[name].numbers == whole[name].numbers for name in shared)


@pytest.mark.parametrize("arch", OF_EXPERTS)
def test_each_expert_is_shared_out_and_its_router_is_whole(tmp_path: Path, arch: Architecture) -> None:
    make_checkpoint(tmp_path, arch)
    whole, share = taken(tmp_path, None), taken(tmp_path, Place(3, 4))
    assert whole.keys() == share.keys() == set(open_checkpoint(tmp_path)), "no tensor is left out"
    whole_ones = {name for name in whole if share[name] == whole[name]}
    not_feeds = (
        "embed_tokens.",
        "lm_head.",
        "norm.",
        "self_attn.",
        ".gate.",
        "correction_bias",
        ".router.",
        "proj_bias",
    )
    assert whole_ones == {name for name in whole if any(part in name for part in not_feeds)}
    assert all(4 * share[name].numbers == whole[name].numbers for name in whole.keys() - whole_ones)
    stacked = arch == "gpt_oss"
    assert sum(".experts." in name for name in whole) >= (3 * 4 if stacked else 2 * 4 * 3), "experts, layers, linears"


@pytest.mark.parametrize(
    ("arch", "name", "shape"),
    [
        ("qwen3_moe", "model.layers.2.mlp.experts.5.up_proj.weight", [24, 48]),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.3.w2.weight", [48, 80]),
        ("minimax_m2", "model.layers.1.block_sparse_moe.e_score_correction_bias", [8]),
        ("glm4_moe", "model.layers.1.mlp.shared_experts.down_proj.weight", [48, 24]),
        ("glm4_moe", "model.layers.2.mlp.gate.weight", [8, 48]),
        ("gpt_oss", "model.layers.2.mlp.router.bias", [8]),
        ("gpt_oss", "model.layers.0.self_attn.sinks", [4]),
        ("gpt_oss", "model.layers.1.mlp.experts.gate_up_proj", [8, 48, 64]),
    ],
)
def test_what_is_missing_of_experts_is_named(tmp_path: Path, arch: Architecture, name: str, shape: list[int]) -> None:
    path = make_checkpoint(tmp_path, arch) / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as refusal:
        taken(tmp_path, None)
    assert f"tensor {name} of shape {shape} is missing from the checkpoint" in str(refusal.value)


def test_each_norm_of_gemma3_is_1_more_than_in_the_file_and_loses_no_bit_of_it(tmp_path: Path) -> None:
    config = load_config(make_checkpoint(tmp_path, "gemma3", dtype="bfloat16"))
    passes = TorchPasses(config.num_heads, config.head_dim, config.rms_norm_eps)
    decoder = load_decoder(open_checkpoint(tmp_path), config, passes, to_dtype=torch.bfloat16, to_device=CPU)
    norms: dict[str, Tensor | None] = {"model.norm.weight": decoder.final_norm_E}
    for index, layer in enumerate(decoder.layers):
        assert layer.mixer.norms_before is not None and layer.mixer.qk_norm_ND is None
        q_norm, k_norm = layer.mixer.norms_before
        of_layer = {
            "input_layernorm": layer.input_norm_E,
            "post_attention_layernorm": layer.mixed_norm_E,
            "pre_feedforward_layernorm": layer.feed_norm_E,
            "post_feedforward_layernorm": layer.fed_norm_E,
            "self_attn.q_norm": q_norm,
            "self_attn.k_norm": k_norm,
        }
        norms |= {f"model.layers.{index}.{name}.weight": norm for name, norm in of_layer.items()}

    tensors = load_file(tmp_path / "model.safetensors")
    assert norms.keys() == {name for name in tensors if "norm" in name}, "a norm was left out"
    for name, norm in norms.items():
        assert tensors[name].dtype == torch.bfloat16 and tensors[name].std() > 0.05, f"{name} is not random"
        assert norm is not None and norm.dtype == torch.float32
        assert torch.equal(norm, tensors[name].float() + 1.0), name


class Copies(TorchDispatchMode):  # type: ignore[misc]
    """While it is entered, it counts operations that copy numbers: `of[size]` are those that copied so many."""

    def __init__(self) -> None:
        super().__init__()
        self.of = Counter[int]()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.clone):
            self.of[result.numel()] += 1
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_weight_of_a_stack_of_experts_is_copied_by_one_operation(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it will be packed. On a GPU, many small copies take far longer."""
    config = load_config(make_checkpoint(tmp_path, "gpt_oss", hidden_size=64, num_hidden_layers=1))
    feed = config.layers[0].feed
    assert isinstance(feed, ExpertsConfig) and feed.names.is_stacked
    monkeypatch.setattr("model.rows.AT_ONCE", 200)
    checkpoint = open_checkpoint(tmp_path)
    weights = Weights(checkpoint, config, dtype, CPU, None)
    with Copies() as copies:
        experts = weights._stacked("model.layers.0.mlp.experts", feed)
    assert len(experts) == feed.count
    large = {size: num for size, num in copies.of.items() if size > 2 * feed.count * max(feed.expert.width, 64)}
    assert large == {feed.expert.width * 64: 3 * feed.count}, copies.of
    assert sum(copies.of.values()) <= 6 * feed.count + 2, copies.of
    for expert in experts:
        linears: tuple[Any, ...] = (*expert.gate_up.linears, expert.down)
        assert all(linear.weight_OI.is_contiguous() for linear in linears)


def test_other_sizes_than_those_of_the_config_are_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "mixtral")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"num_local_experts": 4', '"num_local_experts": 5'))
    with pytest.raises(CheckpointError, match=r"gate\.weight: got shape \[4, 48\], config\.json implies \[5, 48\]"):
        taken(tmp_path, None)


def taken(folder: Path, ranks: Collectives | None) -> dict[str, Taken]:
    """What a rank, or a worker alone, takes of the tensors."""
    config, checkpoint = load_config(folder), open_checkpoint(folder)
    passes = TorchPasses(config.num_heads, config.head_dim, config.rms_norm_eps)
    load_decoder(checkpoint, config, passes, to_dtype=torch.float32, to_device=CPU, collectives=ranks)
    return checkpoint.taken


@pytest.mark.parametrize("arch", ["qwen3", "minimax_m2"])
def test_on_the_device_meta_no_number_is_read_and_the_same_is_noted(tmp_path: Path, arch: Architecture) -> None:
    config = load_config(make_checkpoint(tmp_path, arch))
    passes = TorchPasses(config.num_heads, config.head_dim, config.rms_norm_eps)
    noted = []
    for device in (CPU, torch.device("meta")):
        checkpoint = open_checkpoint(tmp_path, check_values=True)
        decoder = load_decoder(
            checkpoint, config, passes, to_dtype=torch.float32, to_device=device, collectives=Place(0, 2)
        )
        assert decoder.embedding_VE.device.type == device.type
        noted.append({name: (each.numbers, each.dtype) for name, each in checkpoint.taken.items()})
    assert noted[0] == noted[1]
