"""Tiny random Hugging Face folders, made on the spot in each supported architecture. What they say is noise.

Weights are large, so that the two best logits of a step lie well apart and greedy tokens do not hang on rounding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from testkit.router_margins import router_margin

Architecture = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "minimax_m2",
    "glm4_moe",
    "mistral_window",
    "qwen3_window",
    "gemma3",
]
DENSE: tuple[Architecture, ...] = ("llama", "mistral", "qwen2", "qwen3")
OF_EXPERTS: tuple[Architecture, ...] = ("qwen3_moe", "mixtral", "minimax_m2", "glm4_moe")
WITH_WINDOWS: tuple[Architecture, ...] = ("mistral_window", "qwen3_window", "gemma3")
ARCHITECTURES = (*DENSE, *OF_EXPERTS, *WITH_WINDOWS)
WINDOW = 24

MIN_ROUTER_MARGIN = 1e-5  # some ten times what rounding moves a score

_CLASSES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "minimax_m2": (MiniMaxM2Config, MiniMaxM2ForCausalLM),
    "glm4_moe": (Glm4MoeConfig, Glm4MoeForCausalLM),
    "mistral_window": (MistralConfig, MistralForCausalLM),
    "qwen3_window": (Qwen3Config, Qwen3ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
}
_SIZES: dict[str, Any] = {
    "vocab_size": 307,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
    "attention_dropout": 0.0,
}
_OF_ARCHITECTURE: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 16, "use_sliding_window": False},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "mixtral": {"num_local_experts": 4},
    "minimax_m2": {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 8},
    "glm4_moe": {
        "head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "mistral_window": {"head_dim": 16, "sliding_window": WINDOW},  # in every layer
    "qwen3_window": {  # in two layers of three
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3": {
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "final_logit_softcapping": 20.0,
    },
}


def make_checkpoint(
    folder: Path,
    arch: Architecture,
    seed: int = 0,
    *,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Path:
    """Writes config, generation config and weights into `folder` (made if absent) and returns it.

    `overrides` are fields of the transformers config. `eos_token_id` is None unless overridden, so that generation runs
    to its full length. Biases and norms are random too: transformers would start them at 0 and 1, which hides errors.
    Routers begin large, so that the experts of a token do not hang on rounding; so do the biases of their choice.
    """
    config_class, model_class = _CLASSES[arch]
    config = config_class(**{**_SIZES, **_OF_ARCHITECTURE[arch], **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_(0.0, 0.2)
            elif "norm" in name:
                least = -0.4 if arch == "gemma3" else 0.6  # there 1 is added
                parameter.data.uniform_(least, least + 0.8)
            elif name.endswith(".gate.weight"):
                parameter.data.normal_(0.0, 0.6)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.data.normal_(0.0, 0.3)
    model.to(getattr(torch, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def greedy_reference(
    folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int, *, min_margin: float = 1e-4
) -> list[list[int]]:
    """What transformers generates greedily in float32 after each prompt of token ids.

    Asserts that the two best logits of every step lie `min_margin` apart, some ten times what rounding can move them,
    and the scores of experts MIN_ROUTER_MARGIN.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    continuations: list[list[int]] = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(out.logits).topk(2).values
        margin = float((best[..., 0] - best[..., 1]).min())
        assert margin > min_margin, (
            f"two logits lie {margin:.2g} apart after a prompt of {len(prompt)}: change the seed"
        )
        continuations.append(out.sequences[0, len(prompt) :].tolist())
    gap = router_margin(model, [[*prompt, *more] for prompt, more in zip(prompts, continuations, strict=True)])
    assert gap > MIN_ROUTER_MARGIN, f"two experts lie {gap:.2g} apart: change the seed"
    return continuations
