"""A config is read as transformers reads it, and what cannot be computed is refused by name."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import CheckpointError, ConfigError
from runtime.model_config import ModelConfig, Quantised, config_facts, facts_digest, load_config, read_basics
from runtime.model_parts import (
    AttentionConfig,
    ExpertNames,
    ExpertsConfig,
    LayerConfig,
    MlpConfig,
    RopeConfig,
    RouterConfig,
)

BASE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 64], "activation_scheme": "dynamic"}
ARCHITECTURE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
OF_EXPERTS = {
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}


def write(folder: Path, arch: str = "llama", *, without: tuple[str, ...] = (), **fields: Any) -> Path:
    base = BASE if arch.startswith(("Gemma3", "GptOss")) else {**BASE, "sliding_window": None}
    config = {**base, "architectures": [(ARCHITECTURE | OF_EXPERTS).get(arch, arch)], **fields}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in without}))
    return folder


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    assert (config.head_dim, config.context_length, config.rms_norm_eps) == (16, 8192, 1e-6)
    assert config.rope == RopeConfig(10_000.0) and config.checkpoint_dtype is None
    assert not config.tie_word_embeddings
    assert {layer.mixer for layer in config.layers} == {AttentionConfig(4, 2, 16)}
    assert {layer.feed for layer in config.layers} == {MlpConfig(96)}
    assert load_config(write(tmp_path, without=("num_key_value_heads",))).num_kv_heads == 4
    assert load_config(write(tmp_path, num_key_value_heads=None)).num_kv_heads == 4
    assert load_config(write(tmp_path, "qwen3")).head_dim == 128
    assert load_config(write(tmp_path, without=("architectures",), model_type="qwen2")).architecture == "qwen2"


def test_an_empty_rope_scaling_leaves_the_new_spelling(tmp_path: Path) -> None:
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    config = load_config(write(tmp_path, rope_scaling={}, rope_parameters=new))
    assert config.rope == RopeConfig(5e5, "linear", 2.0)


def test_what_the_architectures_differ_by(tmp_path: Path) -> None:
    flags = {}
    for arch in ARCHITECTURE:
        c = load_config(write(tmp_path, arch, attention_bias=True, mlp_bias=True))
        feed = c.layers[1].feed
        assert isinstance(feed, MlpConfig)
        flags[arch] = (c.attention.qkv_bias, c.attention.output_bias, feed.bias, c.attention.qk_norm == "head")
    assert flags == {
        "llama": (True, True, True, False),
        "mistral": (False, False, False, False),
        "qwen2": (True, False, False, False),
        "qwen3": (True, True, False, True),
    }


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_in_both_spellings(tmp_path: Path, key: str) -> None:
    fields: dict[str, Any] = {key: "bfloat16"}
    assert load_config(write(tmp_path, **fields)).checkpoint_dtype == "bfloat16"


def test_end_of_sequence_ids(tmp_path: Path) -> None:
    assert load_config(write(tmp_path)).eos_token_ids == (2,)  # what transformers gives a Llama that does not say
    assert load_config(write(tmp_path, eos_token_id=None)).eos_token_ids == ()
    assert load_config(write(tmp_path, eos_token_id=[7, 9, 7, 4000])).eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert load_config(tmp_path).eos_token_ids == (5, 6)
    (tmp_path / "generation_config.json").write_text("{}")
    assert load_config(tmp_path).eos_token_ids == (7, 9)


def windows(folder: Path) -> list[int]:
    return [layer.mixer.window for layer in load_config(folder).layers]


def test_windows_by_layer(tmp_path: Path) -> None:
    assert windows(write(tmp_path, "mistral")) == [0, 0]
    assert windows(write(tmp_path, "mistral", without=("sliding_window",))) == [4096, 4096]
    assert windows(write(tmp_path, "mistral", sliding_window=8192)) == [8192, 8192]
    assert windows(write(tmp_path, "mixtral", sliding_window=64, num_local_experts=4)) == [64, 64]
    assert windows(write(tmp_path, "llama", sliding_window=64)) == [0, 0]  # a Llama has no window
    assert windows(write(tmp_path, "qwen2", sliding_window=64, use_sliding_window=False)) == [0, 0]

    used: dict[str, Any] = {"sliding_window": 64, "use_sliding_window": True}
    assert [windows(write(tmp_path, "qwen2", **used, max_window_layers=first)) for first in (0, 1, 2)] == [
        [64, 64], [0, 64], [0, 0],
    ]  # fmt: skip
    absent = write(tmp_path, "qwen2", without=("sliding_window",), use_sliding_window=True, max_window_layers=1)
    assert windows(absent) == [0, 4096]
    types = ["sliding_attention", "full_attention"]
    assert windows(write(tmp_path, "qwen3", **used, layer_types=types)) == [64, 0]
    assert windows(write(tmp_path, "qwen3", **used, layer_types=["full_attention"] * 2)) == [0, 0]
    assert windows(write(tmp_path, "qwen3_moe", **used, num_experts=16)) == [64, 64]
    null: dict[str, Any] = {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}
    for arch in ("qwen2", "qwen3", "qwen3_moe"):
        assert windows(write(tmp_path, arch, **null, num_experts=16)) == [0, 0], "as transformers takes null"


def test_what_gpt_oss_has(tmp_path: Path) -> None:
    released = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
    written = {"rope_scaling": {**released, "beta_fast": 32.0, "beta_slow": 1.0}, "rope_theta": 150_000}
    for rope in (dict[str, Any](), written):
        config = load_config(write(tmp_path, "GptOssForCausalLM", without=("sliding_window",), **rope))
        assert config.rope == RopeConfig(
            150_000.0,
            "yarn",
            32.0,
            original_max_position_embeddings=4096,
            truncate=False,
            attention_factor=0.1 * math.log(32) + 1,
        )
    assert [layer.mixer.window for layer in config.layers] == [128, 0]
    assert config.attention == AttentionConfig(4, 2, 64, qkv_bias=True, output_bias=True, window=128, has_sinks=True)
    feed = config.layers[0].feed
    assert isinstance(feed, ExpertsConfig) and feed.count == 128 and feed.router == RouterConfig(4, has_bias=True)
    assert feed.expert == MlpConfig(96, bias=True, gate="clamped", limit=7.0, alpha=1.702) and feed.shared is None
    assert config.rms_norm_eps == 1e-5 and config.quantised is None
    assert read_basics(tmp_path).speaks_harmony and not read_basics(write(tmp_path)).speaks_harmony


def test_how_weights_are_quantised(tmp_path: Path) -> None:
    def found(arch: str, how: dict[str, Any]) -> Quantised | None:
        return load_config(write(tmp_path, arch, quantization_config=how)).quantised

    assert found("llama", FP8) == found("qwen3", {**FP8, "fmt": "e4m3"}) == Quantised("fp8", (128, 64))
    assert found("GptOssForCausalLM", {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}) == Quantised(
        "mxfp4"
    )


def test_what_gemma_3_has(tmp_path: Path) -> None:
    """Fields as released folders have them: much is absent."""
    text: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "sliding_window": 32}
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    outer: dict[str, Any] = {"text_config": text, "eos_token_id": [1, 106], "torch_dtype": "bfloat16"}
    config = load_config(write(tmp_path, "Gemma3ForConditionalGeneration", without=tuple(BASE), **outer))
    assert [layer.mixer.window for layer in config.layers] == [32] * 5 + [0, 32]
    assert [layer.mixer.rope for layer in config.layers] == [1] * 5 + [0, 1]
    assert config.ropes == (RopeConfig(1e6, "linear", 8.0), RopeConfig(10_000.0))
    assert config.attention == AttentionConfig(8, 4, 256, qk_norm="head", window=32, scale=1 / 16, rope=1)
    assert (config.vocab_size, config.max_position_embeddings) == (262_208, 131_072)
    assert config.tie_word_embeddings and config.norm_offset == 1 and config.scales_embeddings
    assert config.logit_cap is None and config.eos_token_ids == (1, 106) and config.checkpoint_dtype == "bfloat16"
    assert all(layer.has_outer_norms and layer.feed == MlpConfig(96, gate="gelu_tanh") for layer in config.layers)
    basics = read_basics(tmp_path)
    assert (basics.context_length, basics.vocab_size, basics.eos_token_ids) == (131_072, 262_208, (1, 106))
    local = load_config(write(tmp_path, "Gemma3ForCausalLM", rope_local_base_freq=5e3, final_logit_softcapping=30.0))
    assert local.local_rope == RopeConfig(5e3) and local.logit_cap == 30


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("GPT2LMHeadModel", {}, "architectures: got ['GPT2LMHeadModel'], expected one of LlamaForCausalLM"),
    ("Gemma3ForCausalLM", {"hidden_activation": "silu"}, "hidden_activation: got 'silu', expected 'gelu"),
    (
        "Gemma3ForCausalLM",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention: got True",
    ),
    ("Gemma3ForCausalLM", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: got 0"),
    ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: got 50.0, expected none"),
    ("Gemma3ForCausalLM", {"final_logit_softcapping": -1}, "final_logit_softcapping: got -1"),
    ("Gemma3ForCausalLM", {"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling: rope_type: got 'dynamic'"),
    ("Gemma3ForCausalLM", {"rope_parameters": {"chunked_attention": {}}}, "chunked_attention: got {}"),
    (
        "Gemma3ForConditionalGeneration",
        {"text_config": {"num_hidden_layers": 0}},
        "text_config: num_hidden_layers: got",
    ),
    ("llama", {"architectures": None, "model_type": "gpt2"}, "architectures: got None"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures: got 'LlamaForCausalLM', expected a list"),
    ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config: weight_block_size is missing"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quant_method: got 'gptq', expected 'fp8'"),
    ("llama", {"quantization_config": {"quant_method": "mxfp4"}}, "quant_method: got 'mxfp4', expected 'fp8'"),
    ("GptOssForCausalLM", {"quantization_config": {"quant_method": "awq"}}, "got 'awq', expected 'fp8' (blocks of"),
    ("llama", {"quantization_config": {}}, "quantization_config: quant_method is missing"),
    (
        "llama",
        {"quantization_config": {**FP8, "weight_block_size": [128]}},
        "weight_block_size: got [128], expected",
    ),
    ("llama", {"quantization_config": {**FP8, "weight_block_size": [0, 128]}}, "weight_block_size: got [0, 128]"),
    ("llama", {"quantization_config": {**FP8, "fmt": "e5m2"}}, "fmt: got 'e5m2', expected 'e4m3'"),
    ("llama", {"quantization_config": {**FP8, "activation_scheme": "static"}}, "activation_scheme: got 'static'"),
    (
        "GptOssForCausalLM",
        {"num_experts_per_tok": 129},
        "num_experts_per_tok: got 129, expected at most",
    ),
    ("GptOssForCausalLM", {"swiglu_limit": 0}, "swiglu_limit: got 0"),
    ("GptOssForCausalLM", {"layer_types": ["sliding_attention"]}, "layer_types: got ['sliding_attention'], expected"),
    *(
        (arch, {"sliding_window": value}, f"sliding_window: got {value!r}, expected an integer of at least 1")
        for arch in ("Gemma3ForCausalLM", "GptOssForCausalLM")
        for value in (0, -24, "24", 24.5, True, None)
    ),
    *(
        (arch, {"layer_types": types}, f"layer_types: got {types!r}, expected")
        for arch in ("Gemma3ForCausalLM", "GptOssForCausalLM", "qwen2", "mistral")
        for types in (["full_attention"] * 3, ["chunked_attention"] * 2, "full_attention", [1, 2])
    ),
    ("GptOssForCausalLM", {"sliding_window": 8193}, "sliding_window: got 8193, expected at most"),
    ("Gemma3ForCausalLM", {"sliding_window": 8193}, "sliding_window: got 8193, expected at most"),
    ("Gemma3ForCausalLM", {"sliding_window_pattern": 0}, "sliding_window_pattern: got 0"),
    (
        "qwen3",
        {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2},
        "sliding_window: got None, expected an integer of at least 1, because a layer has a window",
    ),
    ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers: got -1"),
    *(
        ("llama", {"quantization_config": {**FP8, "weight_block_size": block}}, f"weight_block_size: got {block!r}")
        for block in ([], [128] * 3, [0, 0], [-128, 128], 128, [128.0, 128], [True, 128], None)
    ),
    ("llama", {"quantization_config": "fp8"}, "quantization_config: got 'fp8', expected an object"),
    *(
        (
            "GptOssForCausalLM",
            {"quantization_config": {"quant_method": "mxfp4"}, field: 80},
            f"{field}: got 80, expected a multiple of 32, of which the numbers of mxfp4 share a scale",
        )
        for field in ("hidden_size", "intermediate_size")
    ),
    *(
        ("GptOssForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0} | fields}, sentence)
        for fields, sentence in (
            ({"original_max_position_embeddings": 0}, "original_max_position_embeddings: got 0"),
            ({"original_max_position_embeddings": "4096"}, "original_max_position_embeddings: got '4096'"),
            ({"beta_slow": 0}, "beta_slow: got 0"),
            ({"factor": "4"}, "factor: got '4'"),
            ({"factor": None}, "factor: got None"),
            ({"mscale": -1}, "mscale: got -1"),
            ({"rope_type": "proportional"}, "rope_type: got 'proportional', expected 'default', 'linear'"),
        )
    ),
    (
        "Gemma3ForCausalLM",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}},
        "rope_parameters: sliding_attention: factor is missing",
    ),
    ("Gemma3ForCausalLM", {"rope_local_base_freq": 0}, "rope_local_base_freq: got 0"),
    ("GptOssForCausalLM", {"head_dim": 63}, "head_dim: got 63, expected an even number"),
    ("GptOssForCausalLM", {"swiglu_alpha": -1}, "swiglu_alpha: got -1"),
    ("llama", {"compression_config": {}}, "compression_config: got {}, expected none"),
    ("mistral", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: got 50.0, expected none"),
    ("qwen3", {"final_logit_softcapping": 30}, "final_logit_softcapping: got 30, expected none"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected 'silu'"),
    ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: factor is missing"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1}},
        "beta_fast: got 1, expected",
    ),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": 1}}, "truncate: got 1"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0}}, "attention_factor: got 0"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling: type: got 'dynamic'"),
    ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters: rope_type: got 'longrope'"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor: got 0"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope by layer type"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: got 0.5"),
    ("llama", {"rope_theta": "10000"}, "rope_theta: got '10000', expected a finite number"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads: got 3, expected a divisor of num_attention_heads"),
    ("llama", {"hidden_size": 63}, "hidden_size: got 63, expected a multiple"),
    ("llama", {"head_dim": 15}, "head_dim: got 15, expected an even number"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers: got 0"),
    ("llama", {"num_hidden_layers": 4097}, "num_hidden_layers: got 4097, expected at most 4096"),
    ("llama", {"max_position_embeddings": 1}, "max_position_embeddings: got 1, expected an integer of at least 2"),
    ("llama", {"vocab_size": True}, "vocab_size: got True"),
    ("llama", {"vocab_size": None}, "vocab_size: got None, expected an integer"),
    ("llama", {"rms_norm_eps": -1}, "rms_norm_eps: got -1"),
    ("llama", {"rope_theta": 10**400}, "rope_theta: got 1000000000000000"),
    ("llama", {"rope_theta": float("inf")}, "rope_theta: got inf, expected a finite number"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings: got 'yes', expected true or false"),
    ("llama", {"eos_token_id": "2"}, "eos_token_id: got '2'"),
    ("llama", {"eos_token_id": [2, -(2**70)]}, "eos_token_id: got [2, -1180591620717411303424], expected a token id"),
    ("llama", {"dtype": "float8_e4m3fn"}, "dtype: got 'float8_e4m3fn'"),
    ("mistral", {"sliding_window": 8193}, "sliding_window: got 8193, expected at most max_position_embeddings, which"),
    ("mistral", {"sliding_window": 0}, "sliding_window: got 0, expected an integer of at least 1"),
    ("mixtral", {"num_local_experts": 4, "sliding_window": -1}, "sliding_window: got -1, expected an integer"),
    ("llama", {"sliding_window": 64, "layer_types": ["sliding_attention"] * 2}, "layer_types: got ['sliding_attention"),
    ("qwen2", {"sliding_window": 9000, "use_sliding_window": True, "max_window_layers": 1}, "sliding_window: got 9000"),
    (
        "qwen3",
        {"layer_types": ["full_attention"] * 3},
        "full_attention or sliding_attention for each of",
    ),
    ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types: got"),
    (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 8},
        "num_experts_per_tok: got 8, expected at most num_experts, which is 4",
    ),
    ("qwen3_moe", {"num_experts": None}, "num_local_experts is missing, expected an integer of at least 1"),
    ("qwen3_moe", {"num_experts": 5000}, "num_experts: got 5000, expected at most 4096"),
    ("qwen3_moe", {"num_experts": 16, "mlp_only_layers": "0"}, "mlp_only_layers: got '0', expected a list of integers"),
    ("qwen3_moe", {"num_experts": 16, "mlp_only_layers": [True]}, "mlp_only_layers: got [True]"),
    ("qwen3_moe", {"num_experts": 16, "decoder_sparse_step": 0}, "decoder_sparse_step: got 0"),
    ("qwen3_moe", {"num_experts": 16, "moe_intermediate_size": -4}, "moe_intermediate_size: got -4"),
    (
        "qwen3_moe",
        {"num_experts": 16, "use_sliding_window": True, "sliding_window": 1 << 20},
        "got 1048576",
    ),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts: got 0"),
    ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}, "at most num_local_experts, which is 2"),
    ("minimax_m2", {"num_local_experts": 8, "scoring_func": "softmax"}, "scoring_func: got 'softmax', expected"),
    ("minimax_m2", {"num_local_experts": 8, "qk_norm_type": "per_head"}, "qk_norm_type: got 'per_head', expected"),
    ("minimax_m2", {"num_local_experts": 8, "shared_intermediate_size": 64}, "shared_intermediate_size: got 64"),
    (
        "minimax_m2",
        {"num_local_experts": 8, "rotary_dim": 256},
        "rotary_dim: got 256, expected an even number, at most",
    ),
    (
        "glm4_moe",
        {"n_routed_experts": 16, "n_group": 3},
        "n_group: got 3, expected a number of equal groups of several",
    ),
    ("glm4_moe", {"n_routed_experts": 16, "n_group": 16}, "n_group: got 16, expected a number of equal groups"),
    (
        "glm4_moe",
        {"n_routed_experts": 16, "n_group": 2, "topk_group": 3},
        "topk_group: got 3, expected at most n_group",
    ),
    ("glm4_moe", {"n_routed_experts": 16, "n_group": 4}, "expected at most 4, the experts of topk_group groups"),
    ("glm4_moe", {"n_routed_experts": 16, "routed_scaling_factor": 0}, "routed_scaling_factor: got 0"),
    (
        "glm4_moe",
        {"n_routed_experts": 16, "partial_rotary_factor": 0.05},
        "partial_rotary_factor: got 0.05, expected a",
    ),
    ("glm4_moe", {"n_routed_experts": 16, "partial_rotary_factor": 0.7}, "of head_dim, which is 16, that is an even"),
]


@pytest.mark.parametrize("arch, fields, sentence", REFUSED)
def test_what_is_not_supported_is_named(tmp_path: Path, arch: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        load_config(write(tmp_path, arch, **fields))
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_parts_of_layers_with_experts(tmp_path: Path) -> None:
    def layers(arch: str, **fields: Any) -> tuple[LayerConfig, ...]:
        return load_config(write(tmp_path, arch, num_hidden_layers=4, **fields)).layers

    found = layers("qwen3_moe", num_experts=16, decoder_sparse_step=2, mlp_only_layers=[3])
    assert [each.feed.num_scores for each in found] == [0, 16, 0, 0] and found[0].mixer.qk_norm == "head"
    expert = MlpConfig(768, field="moe_intermediate_size")
    assert found[1].feed == ExpertsConfig(16, RouterConfig(8, normalised=False), expert)
    of_mixtral = ExpertNames("block_sparse_moe", "w1", "w3", "w2")
    (mixtral,) = {each.feed for each in layers("mixtral", num_local_experts=8)}
    assert mixtral == ExpertsConfig(8, RouterConfig(2), MlpConfig(96), names=of_mixtral)

    (minimax,) = set(layers("minimax_m2", num_local_experts=8))
    assert minimax.mixer == AttentionConfig(4, 2, 128, qk_norm="all")
    assert isinstance(minimax.feed, ExpertsConfig) and minimax.feed.names.choice_bias == "e_score_correction_bias"
    assert minimax.feed.router == RouterConfig(8, "sigmoid", has_choice_bias=True)
    glm = layers("glm4_moe", n_routed_experts=16, n_shared_experts=2, first_k_dense_replace=3, attention_bias=True)
    assert [each.feed for each in glm[:3]] == [MlpConfig(96)] * 3
    assert glm[3].mixer == AttentionConfig(4, 2, 16, qkv_bias=True)
    assert isinstance(glm[3].feed, ExpertsConfig)
    assert glm[3].feed.shared == MlpConfig(2816, field="moe_intermediate_size")
    assert glm[3].feed.active_width == 10 * 1408


def test_what_families_with_experts_take_for_absent_fields(tmp_path: Path) -> None:
    mixtral = load_config(write(tmp_path, "mixtral", num_local_experts=8))
    assert (mixtral.rope.theta, mixtral.rms_norm_eps, mixtral.eos_token_ids) == (1e6, 1e-5, (2,))
    minimax = load_config(write(tmp_path, "minimax_m2", num_local_experts=8, rotary_dim=64, head_dim=96))
    assert minimax.rope == RopeConfig(5e6, num_rotated=64) and minimax.rms_norm_eps == 1e-6
    glm = load_config(write(tmp_path, "glm4_moe", n_routed_experts=16))
    assert glm.rope == RopeConfig(10_000.0, num_rotated=8) and glm.rms_norm_eps == 1e-5
    whole = load_config(write(tmp_path, "glm4_moe", n_routed_experts=16, partial_rotary_factor=1.0))
    assert whole.rope.num_rotated is None


@pytest.mark.parametrize("name", sorted(BASE.keys() - {"num_key_value_heads"}))
def test_missing_fields_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load_config(write(tmp_path, without=(name,)))


@pytest.mark.parametrize(
    "text, sentence", [("{", "not valid JSON"), ("[1]", "got a JSON list"), (None, "no such file")]
)
def test_damaged_files(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=sentence):
        load_config(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 8193])
def test_context_length_is_bounded_by_the_model(tmp_path: Path, length: int) -> None:
    with pytest.raises(ConfigError, match=f"--context-length: got {length}, expected 2 to 8192"):
        load_config(write(tmp_path), context_length=length)


def test_the_facts_are_every_field_but_the_context_length_served(tmp_path: Path) -> None:
    facts = config_facts(load_config(write(tmp_path, rope_theta=5.0, eos_token_id=list(range(200))), context_length=64))
    named = {each.name for each in fields(ModelConfig)} - {"context_length", "rope"} | {"num_layers"}
    parts = {"rope": RopeConfig, "layer.mixer": AttentionConfig, "layer.feed": MlpConfig}
    named |= {"layer.has_outer_norms"}
    assert set(facts) == named | {f"{part}.{each.name}" for part, kind in parts.items() for each in fields(kind)}
    assert (facts["rope.theta"], facts["layer.feed.width"], facts["layers"]) == ("5.0", "96", "[[0, 2]]")
    assert len(facts["eos_token_ids"]) == 32  # a digest


def test_layers_of_other_kinds_are_other_facts(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    wider = replace(config.layers[0], feed=MlpConfig(128))
    facts = config_facts(replace(config, layers=(*config.layers, wider, config.layers[0])))
    assert facts["layers"] == "[[0, 2], [1, 1], [0, 1]]"
    assert (facts["layer.feed.width"], facts["layer1.feed.width"]) == ("96", "128")


def test_the_digest_covers_configuration_and_dtype(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    same = facts_digest(config_facts(config), "float32")
    assert facts_digest(config_facts(load_config(tmp_path, context_length=100)), "float32") == same
    other = load_config(write(tmp_path, rope_theta=5.0))
    assert (
        len({same, facts_digest(config_facts(config), "bfloat16"), facts_digest(config_facts(other), "float32")}) == 3
    )
