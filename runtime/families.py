"""The supported architectures: each is a function from the fields of a config.json to the parts of its layers.

A family also has its window, if it has one, and what transformers takes for fields that a config.json may omit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from runtime.files import JsonFields
from runtime.model_parts import AttentionConfig, LayerConfig, MlpConfig

MAX_LAYERS: Final = 4096
Layers = tuple[LayerConfig, ...]


def no_window(config: JsonFields) -> int | None:
    """Tokens that a layer with a window sees; None: no layer has one. Here only those that layer_types names."""
    return config.integer("sliding_window") if config.has("sliding_window") and _slides(config) else None


@dataclass(frozen=True)
class Family:
    """One architecture. `window` is a function as `no_window`."""

    name: str  # of its model_type
    layers: Callable[[JsonFields], Layers]
    window: Callable[[JsonFields], int | None] = no_window
    default_eos: tuple[int, ...] = ()


# ---- layers ----


def llama(config: JsonFields) -> Layers:
    """Biases as the config says."""
    bias = config.boolean("attention_bias", False)
    attention = AttentionConfig(*_heads(config), qkv_bias=bias, output_bias=bias)
    return _same(config, attention, _mlp(config, bias=config.boolean("mlp_bias", False)))


def mistral(config: JsonFields) -> Layers:
    """No biases."""
    return _same(config, AttentionConfig(*_heads(config, default_kv_heads=8)), _mlp(config))


def qwen2(config: JsonFields) -> Layers:
    """q, k and v have a bias. MiMo is a Qwen2 with draft layers."""
    return _same(config, AttentionConfig(*_heads(config, default_kv_heads=32), qkv_bias=True), _mlp(config))


def qwen3(config: JsonFields) -> Layers:
    """q and k of each head have a norm."""
    bias, heads = config.boolean("attention_bias", False), _heads(config, default_kv_heads=32, default_head_dim=128)
    return _same(config, AttentionConfig(*heads, qkv_bias=bias, output_bias=bias, qk_norm=True), _mlp(config))


def _same(config: JsonFields, attention: AttentionConfig, mlp: MlpConfig) -> Layers:
    """As many equal layers as the config says."""
    return (LayerConfig(attention, mlp),) * num_layers_of(config)


def num_layers_of(config: JsonFields) -> int:
    """num_hidden_layers. CheckpointError if no model has so many."""
    if (count := config.integer("num_hidden_layers")) > MAX_LAYERS:
        raise config.refuse("num_hidden_layers", f"at most {MAX_LAYERS}")
    return count


def _mlp(config: JsonFields, *, bias: bool = False) -> MlpConfig:
    return MlpConfig(config.integer("intermediate_size"), bias)


def _heads(
    config: JsonFields, *, default_kv_heads: int | None = None, default_head_dim: int | None = None
) -> tuple[int, int, int]:
    """(num_heads, num_kv_heads, head_dim), checked against each other. Without defaults: as many KV heads as heads, and
    hidden_size / num_attention_heads."""
    num_heads, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    written = "num_key_value_heads" in config.values
    num_kv_heads = config.integer("num_key_value_heads", num_heads if written else default_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise config.refuse("num_key_value_heads", f"a divisor of num_attention_heads, which is {num_heads}")
    if not config.has("head_dim") and default_head_dim is None and hidden_size % num_heads:
        raise config.refuse("hidden_size", f"a multiple of num_attention_heads, which is {num_heads}")
    head_dim = config.integer("head_dim", default_head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise config.refuse("head_dim", "an even number")
    return num_heads, num_kv_heads, head_dim


# ---- windows ----


def mistral_window(config: JsonFields) -> int | None:
    """A Mistral that does not say has a window; null is none."""
    if "sliding_window" not in config.values:
        return 4096
    return config.integer("sliding_window") if config.has("sliding_window") else None


def qwen_window(config: JsonFields) -> int | None:
    """A Qwen has one if use_sliding_window says so, in the layers that layer_types or max_window_layers names."""
    if not config.boolean("use_sliding_window", False):
        return None
    window, first = config.integer("sliding_window", 4096), config.integer("max_window_layers", 28, minimum=0)
    by_default = first < num_layers_of(config)
    return window if (_slides(config) if config.text_list("layer_types") else by_default) else None


def _slides(config: JsonFields) -> bool:
    return "sliding_attention" in config.text_list("layer_types")


FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family("llama", llama, default_eos=(2,)),
    "MistralForCausalLM": Family("mistral", mistral, mistral_window, default_eos=(2,)),
    "Qwen2ForCausalLM": Family("qwen2", qwen2, qwen_window),
    "MiMoForCausalLM": Family("mimo", qwen2, qwen_window),
    "Qwen3ForCausalLM": Family("qwen3", qwen3, qwen_window),
}


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
