"""The one reader of a model folder's config.json, and its digests. Unsupported fields are refused by name.

It finds the architecture and its variants (biases, q/k norms, rope, tied embeddings). Workers call `load_config`; the
gateway and the launcher call `read_basics`, which takes any model.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import xxhash

from protocol.errors import CheckpointError, ConfigError
from protocol.kv_layout import ITEM_BYTES
from runtime.files import JsonFields, read_fields

MAX_FACT_CHARS: Final = 200  # of one field in config_facts
SUPPORTED_ROPE: Final = "'default', 'linear' or 'llama3'"


@dataclass(frozen=True)
class Family:
    """The differences of one architecture, and the defaults of fields that its configs may omit."""

    name: str
    default_kv_heads: int | None = None  # None: as many as attention heads
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    default_sliding_window: int | None = None
    default_eos: tuple[int, ...] = ()
    qkv_bias: bool | None = False  # None: attention_bias of the config
    output_bias: bool | None = False  # None: attention_bias of the config
    mlp_bias: bool | None = False  # None: mlp_bias of the config
    qk_norm: bool = False


FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family("llama", default_eos=(2,), qkv_bias=None, output_bias=None, mlp_bias=None),
    "MistralForCausalLM": Family("mistral", default_kv_heads=8, default_sliding_window=4096, default_eos=(2,)),
    "Qwen2ForCausalLM": Family("qwen2", default_kv_heads=32, qkv_bias=True),
    "MiMoForCausalLM": Family("mimo", default_kv_heads=32, qkv_bias=True),  # Qwen2 with draft layers
    "Qwen3ForCausalLM": Family(
        "qwen3", default_kv_heads=32, default_head_dim=128, qkv_bias=None, output_bias=None, qk_norm=True
    ),
}


UNSUPPORTED: Final[Mapping[str, str]] = {  # fields that change results with every value but null
    "quantization_config": "quantised checkpoints are",
    "compression_config": "quantised checkpoints are",
    "attn_logit_softcapping": "capped attention scores are",
    "final_logit_softcapping": "capped logits are",
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one model. Only `llama3` uses the last three fields."""

    theta: float
    kind: str = "default"  # default | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only model. Counts are of the whole model. `context_length` is the served one, in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    checkpoint_dtype: str | None = None  # from config.json, if it has one
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelBasics:
    """The fields that every model has, even one that no worker can serve. None: the folder has no such field."""

    context_length: int | None = None
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    names_architecture: bool = False


def read_basics(folder: Path) -> ModelBasics:
    """Reads config.json and generation_config.json, which may be absent. CheckpointError if one is damaged."""
    config = read_fields(folder / "config.json", optional=True)
    return ModelBasics(
        config.integer("max_position_embeddings", minimum=2) if config.has("max_position_embeddings") else None,
        config.integer("vocab_size") if config.has("vocab_size") else None,
        _eos_token_ids(folder, config),
        bool(config.values.get("architectures") or config.values.get("model_type")),
    )


def load_config(folder: Path, *, context_length: int | None = None) -> ModelConfig:
    """Reads config.json and generation_config.json of `folder`.

    `context_length` is the longest prompt plus output to serve; None: the model's limit. CheckpointError (ConfigError
    for `context_length`) names file, field, value and what is supported.
    """
    config = read_fields(folder / "config.json")
    family = find_family(config)
    served = served_context(context_length, config.integer("max_position_embeddings", minimum=2))
    eos_token_ids = _eos_token_ids(folder, config)
    return read_config(config, family, served, family.default_eos if eos_token_ids is None else eos_token_ids)


def read_config(config: JsonFields, family: Family, served: int, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    """The model that a config.json describes, for contexts of `served` tokens. CheckpointError as in load_config."""
    for name, what in UNSUPPORTED.items():
        if config.has(name):
            raise config.refuse(name, f"none ({what} not supported)")
    if config.text("hidden_act", "silu") != "silu":
        raise config.refuse("hidden_act", "'silu'")
    _refuse_sliding_window(config, family, served)

    max_position_embeddings = config.integer("max_position_embeddings", minimum=2)
    vocab_size, hidden_size = config.integer("vocab_size"), config.integer("hidden_size")
    num_heads, num_kv_heads, head_dim = _heads(config, family, hidden_size)
    attention_bias = config.boolean("attention_bias", False)
    return ModelConfig(
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        context_length=served,
        rms_norm_eps=config.positive_number("rms_norm_eps", 1e-6),
        rope=_read_rope(config, max_position_embeddings),
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=config.boolean("mlp_bias", False) if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        checkpoint_dtype=_checkpoint_dtype(config),
        eos_token_ids=tuple(
            token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size
        ),  # others are never drawn
    )


def config_facts(config: ModelConfig) -> dict[str, str]:
    """Every field but the served context length, as JSON by name. Texts above MAX_FACT_CHARS become digests."""
    content = asdict(config)
    del content["context_length"]
    rope = content.pop("rope")
    content |= {f"rope.{name}": value for name, value in rope.items()}
    texts = {name: json.dumps(value) for name, value in content.items()}
    return {name: text if len(text) <= MAX_FACT_CHARS else _digest(text) for name, text in texts.items()}


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


def find_family(config: JsonFields) -> Family:
    """The family that config.json names. CheckpointError if it is not a supported one."""
    architectures = config.text_list("architectures")
    supported = f"one of {', '.join(FAMILIES)}"
    if architectures:
        if len(architectures) != 1 or architectures[0] not in FAMILIES:
            raise config.refuse("architectures", supported)
        return FAMILIES[architectures[0]]
    for family in FAMILIES.values():
        if config.values.get("model_type") == family.name:
            return family
    raise config.refuse("architectures", supported)


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


def _refuse_sliding_window(config: JsonFields, family: Family, served: int) -> None:
    """CheckpointError if a served request can be longer than the model's sliding window."""
    layer_types = config.text_list("layer_types")
    if any(kind not in ("full_attention", "sliding_attention") for kind in layer_types):
        raise config.refuse("layer_types", "full_attention in every layer")

    window = None
    if family.name.startswith(("qwen", "mimo")):
        if config.boolean("use_sliding_window", False):
            window = config.integer("sliding_window", 4096)
            first_sliding = config.integer("max_window_layers", 28, minimum=0)
            by_default = first_sliding < config.integer("num_hidden_layers")
            slides = "sliding_attention" in layer_types if layer_types else by_default
            window = window if slides else None
    elif config.has("sliding_window"):
        if family.name == "mistral" or "sliding_attention" in layer_types:
            window = config.integer("sliding_window")
    elif "sliding_window" not in config.values:
        window = family.default_sliding_window

    if window is not None and window < served:
        raise CheckpointError(
            f"{config.where}: sliding_window: got {window}, which would change results within the served context of"
            f" {served} tokens; supported: null, or a context length of at most {window}"
        )


def _read_rope(config: JsonFields, max_position_embeddings: int) -> RopeConfig:
    """The rope of a config.json, in the old form (`rope_theta`, `rope_scaling`) or the new one (`rope_parameters`)."""
    fields = config.nested("rope_scaling")
    if not fields.values:
        fields = config.nested("rope_parameters")
    for name, value in fields.values.items():
        if isinstance(value, dict):
            raise fields.refuse(name, "one rope for all layers (rope by layer type is not supported)")
    for holder in (fields, config):
        if holder.positive_number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.refuse("partial_rotary_factor", "1 (partial rotation is not supported)")

    theta = fields.positive_number("rope_theta", config.positive_number("rope_theta", 10_000.0))
    name = "rope_type" if fields.has("rope_type") else "type"
    kind = fields.text(name, "default")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, fields.positive_number("factor"))
    if kind != "llama3":
        raise fields.refuse(name, SUPPORTED_ROPE)

    low, high = fields.positive_number("low_freq_factor"), fields.positive_number("high_freq_factor")
    if high <= low:
        raise fields.refuse("high_freq_factor", f"more than low_freq_factor, which is {low}")
    original = fields.integer("original_max_position_embeddings", max_position_embeddings)
    return RopeConfig(theta, kind, fields.positive_number("factor"), low, high, original)


def _heads(config: JsonFields, family: Family, hidden_size: int) -> tuple[int, int, int]:
    """(num_heads, num_kv_heads, head_dim), checked against each other."""
    num_heads = config.integer("num_attention_heads")
    written = "num_key_value_heads" in config.values
    default_kv_heads = num_heads if written or family.default_kv_heads is None else family.default_kv_heads
    num_kv_heads = config.integer("num_key_value_heads", default_kv_heads)
    if num_heads % num_kv_heads:
        raise config.refuse("num_key_value_heads", f"a divisor of num_attention_heads, which is {num_heads}")
    if not config.has("head_dim") and family.default_head_dim is None and hidden_size % num_heads:
        raise config.refuse("hidden_size", f"a multiple of num_attention_heads, which is {num_heads}")
    head_dim = config.integer("head_dim", family.default_head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise config.refuse("head_dim", "an even number")
    return num_heads, num_kv_heads, head_dim


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
