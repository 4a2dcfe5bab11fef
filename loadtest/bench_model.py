"""The models of the comparisons: Qwen3's shape with 29 million parameters, and a mixture of experts.

Each is a Hugging Face folder that any server loads: bfloat16, random weights, a tokenizer of one made-up word per
token. Answers make no sense; only speed is measured.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

NAME = "qwen3-29m"
CONTEXT_LENGTH = 4096
CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": CONTEXT_LENGTH,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}
EXPERTS_NAME = "qwen3-moe-321m"
EXPERTS_CONFIG: Mapping[str, Any] = {  # half of Qwen3-30B-A3B's widths, two layers: 8 of 128 experts for a token
    **CONFIG,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 384,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_SEED = 0
Weights = Callable[[str, tuple[int, ...]], bytes]  # from a tensor's name and shape


def bench_model(**changes: int) -> Path:
    """The folder of the dense model, written into the user's cache on first use. `changes`: keys of CONFIG with other
    values."""
    name = "-".join([NAME, *[f"{key}-{value}" for key, value in sorted(changes.items())]])
    return _cached(name, {**CONFIG, **changes})


def experts_model() -> Path:
    """The same of the mixture of experts."""
    return _cached(EXPERTS_NAME, EXPERTS_CONFIG)


def _cached(name: str, config: Mapping[str, Any]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "baton" / f"{name}-1"  # increase the number when the content changes
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        write_model(unfinished, config)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return folder


def write_model(folder: Path, config: Mapping[str, Any], weights: Weights | None = None) -> None:
    """Writes a checkpoint of the shape in `config` to a new `folder`. `weights` returns the bytes of each bfloat16
    tensor. The default weights are the same each time."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))

    weights = weights or partial(_weights, np.random.default_rng(_SEED), config)
    tensors = {name: (shape, weights(name, shape)) for name, shape in _shapes(config)}
    _write_safetensors(folder / "model.safetensors", tensors)

    words = {f"w{token_id}": token_id for token_id in range(config["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2", "pad_token": "w0", "unk_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of a Qwen3 checkpoint with untied embeddings, with an MLP or experts in each layer."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    yield "model.embed_tokens.weight", (vocab, hidden)

    for layer in range(config["num_hidden_layers"]):
        of = f"model.layers.{layer}."
        yield of + "input_layernorm.weight", (hidden,)
        yield of + "self_attn.q_proj.weight", (queries, hidden)
        yield of + "self_attn.k_proj.weight", (keys, hidden)
        yield of + "self_attn.v_proj.weight", (keys, hidden)
        yield of + "self_attn.q_norm.weight", (head,)
        yield of + "self_attn.k_norm.weight", (head,)
        yield of + "self_attn.o_proj.weight", (hidden, queries)
        yield of + "post_attention_layernorm.weight", (hidden,)
        if num_experts := config.get("num_experts", 0):
            yield of + "mlp.gate.weight", (num_experts, hidden)
        inner = config["moe_intermediate_size" if num_experts else "intermediate_size"]
        for mlp in [f"experts.{expert}." for expert in range(num_experts)] or [""]:
            yield f"{of}mlp.{mlp}gate_proj.weight", (inner, hidden)
            yield f"{of}mlp.{mlp}up_proj.weight", (inner, hidden)
            yield f"{of}mlp.{mlp}down_proj.weight", (hidden, inner)

    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def _weights(rng: np.random.Generator, config: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> bytes:
    """Bytes of a bfloat16 tensor: the upper half of each float32. Norms are ones."""
    if "norm" in name:
        numbers = np.ones(shape, np.float32)
    else:
        numbers = rng.standard_normal(shape, np.float32) * np.float32(config["initializer_range"])
    return (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()


def _write_safetensors(path: Path, tensors: Mapping[str, tuple[tuple[int, ...], bytes]]) -> None:
    """Writes the header's length, the header and the bytes. The safetensors library takes bfloat16 only from torch,
    whose import is slow."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, content) in tensors.items():
        start, end = end, end + len(content)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.writelines(content for _, content in tensors.values())
