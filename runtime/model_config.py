"""The one reader of a model folder's config.json, and its digests. Unsupported fields are refused by name.

`families.py` tells the layers of each architecture; what all have in common is read here. Workers call `load_config`;
the gateway and the launcher call `read_basics`, which takes any model.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import xxhash

from protocol.errors import CheckpointError, ConfigError
from protocol.kv_layout import ITEM_BYTES
from runtime.families import FULL, SLIDING, Family, find_family, layer_types, text_fields
from runtime.files import JsonFields, read_fields
from runtime.model_parts import AttentionConfig, LayerConfig, RopeConfig

MAX_FACT_CHARS: Final = 200  # of one field in config_facts
SUPPORTED_ROPE: Final = "'default', 'linear', 'llama3' or 'yarn'"
MXFP4_GROUP: Final = 32  # numbers of MXFP4 that share a scale
UNSUPPORTED: Final[Mapping[str, str]] = {  # fields that change results with every value but null
    "compression_config": "quantised checkpoints are",
    "attn_logit_softcapping": "capped attention scores are",
}


@dataclass(frozen=True)
class Quantised:
    """How a checkpoint holds some weights in fewer bits. See model/quantised.py."""

    method: str  # fp8 | mxfp4
    block: tuple[int, int] = (1, 1)  # fp8: outputs and inputs that share a scale


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only model. `context_length` is the served one, in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]  # their mixers have the same heads
    max_position_embeddings: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None  # of layers with a window, if they have another one
    norm_offset: float = 0.0  # added to the weights of norms
    scales_embeddings: bool = False  # by sqrt(hidden_size)
    logit_cap: float | None = None  # logits are cap * tanh(logit / cap)
    quantised: Quantised | None = None
    tie_word_embeddings: bool = False
    checkpoint_dtype: str | None = None  # from config.json, if it has one
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        """How many decoder layers there are."""
        return len(self.layers)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The model's ropes; mixers name one by its place."""
        return (self.rope,) if self.local_rope is None else (self.rope, self.local_rope)

    @property
    def has_experts(self) -> bool:
        """Whether a layer is a mixture of experts."""
        return any(layer.feed.num_scores for layer in self.layers)

    @property
    def attention(self) -> AttentionConfig:
        """The mixer of the first layer. Those of others have the same heads."""
        return self.layers[0].mixer

    @property
    def num_heads(self) -> int:
        """Query heads of a layer."""
        return self.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """KV heads of a layer."""
        return self.attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Numbers of a head."""
        return self.attention.head_dim


@dataclass(frozen=True)
class ModelBasics:
    """The fields that every model has, even one that no worker can serve. None: the folder has no such field."""

    context_length: int | None = None
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    names_architecture: bool = False
    speaks_harmony: bool = False  # chats of gpt-oss


def read_basics(folder: Path) -> ModelBasics:
    """Reads config.json and generation_config.json, which may be absent. CheckpointError if one is damaged."""
    config = text_fields(read_fields(folder / "config.json", optional=True))
    return ModelBasics(
        config.integer("max_position_embeddings", minimum=2) if config.has("max_position_embeddings") else None,
        config.integer("vocab_size") if config.has("vocab_size") else None,
        _eos_token_ids(folder, config),
        bool(config.values.get("architectures") or config.values.get("model_type")),
        config.values.get("model_type") == "gpt_oss" or config.values.get("architectures") == ["GptOssForCausalLM"],
    )


def load_config(folder: Path, *, context_length: int | None = None) -> ModelConfig:
    """Reads config.json and generation_config.json of `folder`.

    `context_length` is the longest prompt plus output to serve; None: the model's limit. CheckpointError (ConfigError
    for `context_length`) names file, field, value and what is supported.
    """
    config = text_fields(read_fields(folder / "config.json"))
    family = find_family(config)
    served = served_context(context_length, config.integer("max_position_embeddings", minimum=2))
    eos_token_ids = _eos_token_ids(folder, config)
    return read_config(config, family, served, family.default_eos if eos_token_ids is None else eos_token_ids)


def read_config(config: JsonFields, family: Family, served: int, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    """The model that a config.json describes, for contexts of `served` tokens. CheckpointError as in load_config."""
    for name, what in UNSUPPORTED.items():
        if config.has(name):
            raise config.refuse(name, f"none ({what} not supported)")
    if config.has("final_logit_softcapping") and not family.caps_logits:
        raise config.refuse("final_logit_softcapping", "none (capped logits are not supported)")
    activation, only = family.activation
    if config.text(activation, only) != only:
        raise config.refuse(activation, repr(only))

    max_position_embeddings = config.integer("max_position_embeddings", minimum=2)
    vocab_size, hidden_size = config.integer("vocab_size"), config.integer("hidden_size")
    layers = _layers(config, family)
    return ModelConfig(
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=layers,
        max_position_embeddings=max_position_embeddings,
        context_length=served,
        rms_norm_eps=config.positive_number("rms_norm_eps", family.default_eps),
        rope=_read_rope(config, family, layers[0].mixer.head_dim, max_position_embeddings),
        local_rope=_read_local_rope(config, family, max_position_embeddings),
        norm_offset=family.norm_offset,
        quantised=_quantised(config, family),
        scales_embeddings=family.scales_embeddings,
        logit_cap=config.positive_number("final_logit_softcapping") if config.has("final_logit_softcapping") else None,
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        checkpoint_dtype=_checkpoint_dtype(config),
        eos_token_ids=tuple(
            token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size
        ),  # others are never drawn
    )


def config_facts(config: ModelConfig) -> dict[str, str]:
    """Every field but the served context length, as JSON by name. Texts above MAX_FACT_CHARS become digests.

    Equal layers are told once: `layers` says how many follow one another, and of which kind.
    """
    content = asdict(config)
    del content["context_length"], content["layers"]
    content |= _flat("rope", content.pop("rope"))
    if config.local_rope is not None:
        content |= _flat("local_rope", content.pop("local_rope"))

    kinds = list(dict.fromkeys(config.layers))
    for number, kind in enumerate(kinds):
        content |= _flat(f"layer{number or ''}", asdict(kind))
    runs = groupby(map(kinds.index, config.layers))
    content["num_layers"] = len(config.layers)
    content["layers"] = [[kind, len(list(equal))] for kind, equal in runs]
    texts = {name: json.dumps(value) for name, value in content.items()}
    return {name: text if len(text) <= MAX_FACT_CHARS else _digest(text) for name, text in texts.items()}


def _flat(prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and those of fields within them, by the names that lead to them."""
    found = dict[str, Any]()
    for name, value in content.items():
        found |= _flat(f"{prefix}.{name}", value) if isinstance(value, dict) else {f"{prefix}.{name}": value}
    return found


def facts_digest(facts: Mapping[str, str], dtype: str) -> str:
    """Hexadecimal digest of a model's facts and its serving dtype."""
    return _digest(json.dumps({**facts, "dtype": dtype}, sort_keys=True))


def tokenizer_digest(folder: Path) -> str:
    """xxh3-128 of the folder's tokenizer.json, in hexadecimal; "" if there is none. CheckpointError if it cannot be
    read."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return ""
    if not path.is_file():
        raise CheckpointError(f"{path}: not a file")
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def served_context(context_length: int | None, max_position_embeddings: int) -> int:
    """The longest prompt and output together, in tokens. ConfigError if the model allows less."""
    longest = max_position_embeddings if context_length is None else context_length
    if not 2 <= longest <= max_position_embeddings:
        raise ConfigError(
            f"--context-length: got {longest}, expected 2 to {max_position_embeddings}, the model's"
            " max_position_embeddings",
            param="context-length",
        )
    return longest


def _layers(config: JsonFields, family: Family) -> tuple[LayerConfig, ...]:
    """The layers of the family, each with its window."""
    layer_types(config)
    return tuple(
        replace(layer, mixer=replace(layer.mixer, window=window)) if window else layer
        for layer, window in zip(family.layers(config), family.windows(config), strict=True)
    )


def _read_rope(config: JsonFields, family: Family, head_dim: int, max_position_embeddings: int) -> RopeConfig:
    """The rope of a config.json, in the old form (`rope_theta`, `rope_scaling`) or the new one (`rope_parameters`)."""
    fields = config.nested("rope_scaling")
    if not fields.values:
        fields = config.nested("rope_parameters")
    if family.default_local_theta is not None and fields.has(FULL):
        fields = fields.nested(FULL)
    for name, value in fields.values.items():
        if isinstance(value, dict) and not (family.default_local_theta is not None and name == SLIDING):
            raise fields.refuse(name, "one rope for all layers (rope by layer type is not supported)")
    theta = fields.positive_number("rope_theta", config.positive_number("rope_theta", family.default_theta))
    rope = _rope_of_kind(fields, theta, max_position_embeddings)
    return replace(rope, num_rotated=_num_rotated(config, fields, family, head_dim))


def _read_local_rope(config: JsonFields, family: Family, max_position_embeddings: int) -> RopeConfig | None:
    """The rope of layers with a window. None: that of all others."""
    if family.default_local_theta is None:
        return None
    fields = config.nested("rope_parameters").nested(SLIDING)
    theta = config.positive_number("rope_local_base_freq", family.default_local_theta)
    return _rope_of_kind(fields, fields.positive_number("rope_theta", theta), max_position_embeddings)


def _rope_of_kind(fields: JsonFields, theta: float, max_position_embeddings: int) -> RopeConfig:
    """A rope of whole heads. CheckpointError if its kind is not supported, or a field of it is missing or wrong."""
    name = "rope_type" if fields.has("rope_type") else "type"
    kind = fields.text(name, "default")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, fields.positive_number("factor"))
    original = fields.integer("original_max_position_embeddings", max_position_embeddings)
    if kind == "yarn":
        return _yarn(fields, theta, original)
    if kind != "llama3":
        raise fields.refuse(name, SUPPORTED_ROPE)

    low, high = fields.positive_number("low_freq_factor"), fields.positive_number("high_freq_factor")
    if high <= low:
        raise fields.refuse("high_freq_factor", f"more than low_freq_factor, which is {low}")
    return RopeConfig(theta, kind, fields.positive_number("factor"), low, high, original)


def _quantised(config: JsonFields, family: Family) -> Quantised | None:
    """quantization_config. CheckpointError if the weights are quantised in another way than those that are read."""
    if not config.has("quantization_config"):
        return None
    fields = config.nested("quantization_config")
    method, supported = fields.text("quant_method"), "'fp8' (blocks of float8 e4m3)"
    if method == "mxfp4" and family.quantised_experts:
        for name in ("hidden_size", "intermediate_size"):
            if config.integer(name) % MXFP4_GROUP:
                raise config.refuse(name, f"a multiple of {MXFP4_GROUP}, of which the numbers of mxfp4 share a scale")
        return Quantised(method)
    if method != "fp8":
        raise fields.refuse("quant_method", supported + (" or 'mxfp4'" if family.quantised_experts else ""))

    for name, only in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if fields.text(name, only) != only:
            raise fields.refuse(name, repr(only))
    block = fields.integers("weight_block_size")
    if len(block) != 2 or min(block) < 1:
        raise fields.refuse(
            "weight_block_size", "two positive integers (one scale for a whole weight is not supported)"
        )
    return Quantised(method, (block[0], block[1]))


def _yarn(fields: JsonFields, theta: float, original: int) -> RopeConfig:
    """Yarn (Peng et al. 2023): transformers' defaults, and its factor of cosines and sines."""
    factor = fields.positive_number("factor")
    fast, slow = fields.positive_number("beta_fast", 32.0), fields.positive_number("beta_slow", 1.0)
    if fast <= slow:
        raise fields.refuse("beta_fast", f"more than beta_slow, which is {slow}")

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    cap, all_dims = (fields.number_within(name, 0, 1e9, 0.0) for name in ("mscale", "mscale_all_dim"))
    by_default = grown(cap) / grown(all_dims) if cap and all_dims else grown(1.0)
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original_max_position_embeddings=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=fields.boolean("truncate", True),
        attention_factor=fields.positive_number("attention_factor", by_default),
    )


def _num_rotated(config: JsonFields, rope: JsonFields, family: Family, head_dim: int) -> int | None:
    """How many numbers of a head are rotated; None: all."""
    name, supports = "partial_rotary_factor", family.rotated_share
    holder = rope if rope.has(name) else config
    share = holder.positive_number(name, 1.0 if supports is None else supports(config))
    if supports is None and share != 1.0:
        raise holder.refuse(name, "1 (a model of this architecture with partial rotation is not supported)")
    count = int(head_dim * share)
    if not 2 <= count <= head_dim or count % 2:
        raise holder.refuse(name, f"a share of head_dim, which is {head_dim}, that is an even number, at least 2")
    return None if count == head_dim else count


def _checkpoint_dtype(config: JsonFields) -> str | None:
    name = "dtype" if config.has("dtype") else "torch_dtype"
    if not config.has(name):
        return None
    dtype = config.text(name).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise config.refuse(name, f"one of {', '.join(ITEM_BYTES)}")
    return dtype


def _eos_token_ids(folder: Path, config: JsonFields) -> tuple[int, ...] | None:
    """The ids in generation_config.json, or else in config.json. None if neither has the field."""
    generation = read_fields(folder / "generation_config.json", optional=True)
    named = config.token_ids("eos_token_id", ())
    token_ids = generation.token_ids("eos_token_id", ()) or named
    return token_ids if token_ids or "eos_token_id" in config.values else None
