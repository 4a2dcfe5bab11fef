"""The supported architectures: each is a function from the fields of a config.json to the parts of its layers.

A family also has the windows of its layers, and what transformers takes for fields that a config.json may omit.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from runtime.files import JsonFields
from runtime.model_parts import (
    DEFAULT_NAMES,
    GLM_MTP,
    MIMO_MTP,
    AttentionConfig,
    ExpertNames,
    ExpertsConfig,
    FeedConfig,
    LayerConfig,
    MlpConfig,
    MtpNames,
    RouterConfig,
)

MAX_LAYERS: Final = 4096
MAX_EXPERTS: Final = 4096
FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers
MINIMAX_M2_ONLY: Final[Mapping[str, Any]] = {  # what fields of released folders say, and other values would change
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "shared_intermediate_size": 0,
}
Layers = tuple[LayerConfig, ...]
Windows = tuple[int, ...]  # of each layer, in tokens; 0: it has none


def no_windows(config: JsonFields) -> Windows:
    """No layer has one, and layer_types must not name one."""
    if SLIDING in config.text_list("layer_types"):
        raise config.refuse("layer_types", f"{FULL} in every layer: this architecture has no windows")
    return (0,) * num_layers_of(config)


@dataclass(frozen=True)
class Family:
    """One architecture. The defaults are those of fields that may be absent."""

    name: str  # of its model_type
    layers: Callable[[JsonFields], Layers]
    windows: Callable[[JsonFields], Windows] = no_windows
    rotated_share: Callable[[JsonFields], float] | None = None  # by default, of a head; None: whole heads only
    activation: tuple[str, str] = ("hidden_act", "silu")  # the field, and the only value
    absent: Mapping[str, Any] = field(default_factory=dict)  # other fields that may be absent, and their defaults
    norm_offset: float = 0.0  # added to the weights of norms
    quantised_experts: bool = False  # its experts may be MXFP4
    mtp: MtpNames | None = MIMO_MTP  # of the draft layers that a folder may have; None: such layers are not read
    scales_embeddings: bool = False  # by sqrt(hidden_size)
    caps_logits: bool = False  # if final_logit_softcapping says so
    default_local_theta: float | None = None  # of layers with a window; None: all layers have one rope
    default_eos: tuple[int, ...] = ()
    default_theta: float = 10_000.0
    default_eps: float = 1e-6


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
    return _same(config, AttentionConfig(*heads, qkv_bias=bias, output_bias=bias, qk_norm="head"), _mlp(config))


def qwen3_moe(config: JsonFields) -> Layers:
    """A Qwen3 with experts, but for layers that mlp_only_layers or decoder_sparse_step names."""
    bias, heads = config.boolean("attention_bias", False), _heads(config, default_kv_heads=4)
    attention = AttentionConfig(*heads, qkv_bias=bias, output_bias=bias, qk_norm="head")
    router = RouterConfig(config.integer("num_experts_per_tok", 8), normalised=config.boolean("norm_topk_prob", False))
    expert = MlpConfig(config.integer("moe_intermediate_size", 768), field="moe_intermediate_size")
    experts = _experts(config, "num_experts" if config.has("num_experts") else "num_local_experts", router, expert)

    step, dense = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers")
    indices = range(num_layers_of(config))
    are_dense = [index in dense or (index + 1) % step > 0 for index in indices]
    mlp = _mlp(config) if any(are_dense) else None
    return tuple(LayerConfig(attention, mlp if mlp and is_dense else experts) for is_dense in are_dense)


def mixtral(config: JsonFields) -> Layers:
    """A Mistral with experts."""
    router = RouterConfig(config.integer("num_experts_per_tok", 2))
    names = ExpertNames("block_sparse_moe", "w1", "w3", "w2")
    experts = _experts(config, "num_local_experts", router, _mlp(config), names=names)
    return _same(config, AttentionConfig(*_heads(config, default_kv_heads=8)), experts)


def minimax_m2(config: JsonFields) -> Layers:
    """All heads of q together have a norm, and those of k. The router's scores are sigmoids."""
    for name, value in MINIMAX_M2_ONLY.items():
        if config.has(name) and config.values[name] != value:
            raise config.refuse(name, f"{json.dumps(value)}, as MiniMax-M2 has it")
    heads = _heads(config, default_kv_heads=8, default_head_dim=128)
    router = RouterConfig(config.integer("num_experts_per_tok", 8), "sigmoid", has_choice_bias=True)
    names = ExpertNames("block_sparse_moe", "w1", "w3", "w2", choice_bias="e_score_correction_bias")
    experts = _experts(config, "num_local_experts", router, _mlp(config), names=names)
    return _same(config, AttentionConfig(*heads, qk_norm="all"), experts)


def glm4_moe(config: JsonFields) -> Layers:
    """GLM-4.5 and 4.6: dense layers first, then experts in groups, beside one that is shared."""
    norm = "head" if config.boolean("use_qk_norm", False) else "none"
    bias = config.boolean("attention_bias", False)
    attention = AttentionConfig(*_heads(config, default_kv_heads=8), qkv_bias=bias, qk_norm=norm)
    router = RouterConfig(
        config.integer("num_experts_per_tok", 8),
        "sigmoid",
        has_choice_bias=True,
        num_groups=config.integer("n_group", 1),
        num_chosen_groups=config.integer("topk_group", 1),
        normalised=config.boolean("norm_topk_prob", True),
        scale=config.positive_number("routed_scaling_factor", 1.0),
    )
    expert = MlpConfig(config.integer("moe_intermediate_size", 1408), field="moe_intermediate_size")
    shared = replace(expert, width=expert.width * config.integer("n_shared_experts", 1))
    experts = _experts(config, "n_routed_experts", router, expert, shared)

    num_layers = num_layers_of(config)
    num_dense = min(config.integer("first_k_dense_replace", 1, minimum=0), num_layers)
    dense = (LayerConfig(attention, _mlp(config)),) * num_dense if num_dense else ()
    return (*dense, *(LayerConfig(attention, experts),) * (num_layers - num_dense))


def gemma3(config: JsonFields) -> Layers:
    """Four norms a layer, a norm of q and k of each head, and a rope of its own for layers with a window."""
    if config.boolean("use_bidirectional_attention", False):
        raise config.refuse("use_bidirectional_attention", "false (only causal attention is supported)")
    bias, scalar = config.boolean("attention_bias", False), config.positive_number("query_pre_attn_scalar", 256.0)
    attention = AttentionConfig(*_heads(config), qkv_bias=bias, output_bias=bias, qk_norm="head", scale=scalar**-0.5)
    layer = LayerConfig(attention, replace(_mlp(config), gate="gelu_tanh"), has_outer_norms=True)
    local = replace(layer, mixer=replace(attention, rope=1))
    return tuple(local if window else layer for window in gemma3_windows(config))


def gpt_oss(config: JsonFields) -> Layers:
    """Sinks, windows in every second layer, and experts that are chosen by biased logits and gated within limits."""
    bias, heads = config.boolean("attention_bias", True), _heads(config, default_kv_heads=8, default_head_dim=64)
    attention = AttentionConfig(*heads, qkv_bias=bias, output_bias=bias, has_sinks=True)
    limit, alpha = config.positive_number("swiglu_limit", 7.0), config.positive_number("swiglu_alpha", 1.702)
    expert = replace(_mlp(config, bias=True), gate="clamped", limit=limit, alpha=alpha)
    router = RouterConfig(config.integer("num_experts_per_tok", 4), has_bias=True)
    names = ExpertNames(gate="gate_up_proj", up="gate_up_proj", router="router", is_stacked=True)
    return _same(config, attention, _experts(config, "num_local_experts", router, expert, names=names))


def _experts(
    config: JsonFields,
    field: str,
    router: RouterConfig,
    expert: MlpConfig,
    shared: MlpConfig | None = None,
    names: ExpertNames = DEFAULT_NAMES,
) -> ExpertsConfig:
    """Experts whose number is in `field`, checked against their router."""
    count, groups = config.integer(field), router.num_groups
    if count > MAX_EXPERTS:
        raise config.refuse(field, f"at most {MAX_EXPERTS}")
    if router.num_chosen > count:
        raise config.refuse("num_experts_per_tok", f"at most {field}, which is {count}")
    if groups > 1 and (count % groups or count == groups):
        raise config.refuse("n_group", f"a number of equal groups of several experts; {field} is {count}")
    if router.num_chosen_groups > groups:
        raise config.refuse("topk_group", f"at most n_group, which is {groups}")
    if router.num_chosen > (most := count // groups * router.num_chosen_groups):
        raise config.refuse("num_experts_per_tok", f"at most {most}, the experts of topk_group groups")
    return ExpertsConfig(count, router, expert, shared, names)


def _same(config: JsonFields, attention: AttentionConfig, feed: FeedConfig) -> Layers:
    """As many equal layers as the config says."""
    return (LayerConfig(attention, feed),) * num_layers_of(config)


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


def mistral_windows(config: JsonFields) -> Windows:
    """Of every layer. A Mistral that does not say has one; null is none."""
    if "sliding_window" not in config.values:
        return (4096,) * num_layers_of(config)
    return mixtral_windows(config)


def mixtral_windows(config: JsonFields) -> Windows:
    """Of every layer; null is none."""
    return (_window(config) if config.has("sliding_window") else 0,) * num_layers_of(config)


def qwen_windows(config: JsonFields) -> Windows:
    """If use_sliding_window says so, of the layers that layer_types names, or else from max_window_layers on."""
    types = layer_types(config)
    has_none = _is_null(config) and not types
    if has_none or not config.boolean("use_sliding_window", False):
        return (0,) * num_layers_of(config)
    first = config.integer("max_window_layers", 28, minimum=0)
    slides = [kind == SLIDING for kind in types] or [index >= first for index in range(num_layers_of(config))]
    window = _window(config) if any(slides) else 0
    return tuple([window if layer_slides else 0 for layer_slides in slides])


def qwen3_moe_windows(config: JsonFields) -> Windows:
    """Of every layer, if use_sliding_window says so."""
    has_windows = config.boolean("use_sliding_window", False) and not _is_null(config)
    return (_window(config) if has_windows else 0,) * num_layers_of(config)


def gemma3_windows(config: JsonFields) -> Windows:
    """The window of each layer. layer_types says which layers have one; without it, all but every sixth."""
    pattern, indices = config.integer("sliding_window_pattern", 6), range(num_layers_of(config))
    types = layer_types(config) or tuple(SLIDING if (index + 1) % pattern else FULL for index in indices)
    window = _window(config) if SLIDING in types else 0
    return tuple(window if kind == SLIDING else 0 for kind in types)


def gpt_oss_windows(config: JsonFields) -> Windows:
    """The window of each layer. layer_types says which layers have one; without it, every second from the first on."""
    types = layer_types(config) or tuple((SLIDING, FULL)[index % 2] for index in range(num_layers_of(config)))
    window = _window(config, 128) if SLIDING in types else 0
    return tuple(window if kind == SLIDING else 0 for kind in types)


def layer_types(config: JsonFields) -> tuple[str, ...]:
    """The type of each layer; none if the field is absent. CheckpointError if one is not known."""
    types, count = config.text_list("layer_types"), num_layers_of(config)
    if types and (len(types) != count or not {FULL, SLIDING}.issuperset(types)):
        raise config.refuse("layer_types", f"{FULL} or {SLIDING} for each of num_hidden_layers, which is {count}")
    return types


def _window(config: JsonFields, default: int = 4096) -> int:
    """sliding_window. CheckpointError if it is null, or longer than any context."""
    if _is_null(config):
        raise config.refuse("sliding_window", "an integer of at least 1, because a layer has a window")
    window, most = config.integer("sliding_window", default), config.integer("max_position_embeddings", minimum=2)
    if window > most and config.has("sliding_window"):
        raise config.refuse("sliding_window", f"at most max_position_embeddings, which is {most}")
    return window


def _is_null(config: JsonFields) -> bool:
    """Whether sliding_window is written as null, which is another thing than a field that is absent."""
    return config.values.get("sliding_window", 0) is None


def minimax_m2_rotated(config: JsonFields) -> float:
    """The share of a head that is rotated, as released folders say it: rotary_dim numbers of head_dim."""
    head_dim = config.integer("head_dim", 128)
    rotary_dim = config.integer("rotary_dim", head_dim)
    if rotary_dim > head_dim or rotary_dim % 2:
        raise config.refuse("rotary_dim", f"an even number, at most head_dim, which is {head_dim}")
    return rotary_dim / head_dim


GEMMA3: Final = Family(
    "gemma3_text",
    gemma3,
    gemma3_windows,
    default_eos=(1,),
    default_theta=1e6,
    default_local_theta=10_000.0,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    norm_offset=1.0,
    scales_embeddings=True,
    caps_logits=True,
    absent={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
)
FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family("llama", llama, default_eos=(2,)),
    "MistralForCausalLM": Family("mistral", mistral, mistral_windows, default_eos=(2,)),
    "Qwen2ForCausalLM": Family("qwen2", qwen2, qwen_windows),
    "MiMoForCausalLM": Family("mimo", qwen2, qwen_windows),
    "Qwen3ForCausalLM": Family("qwen3", qwen3, qwen_windows),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", qwen3_moe, qwen3_moe_windows, mtp=None),
    "MixtralForCausalLM": Family(
        "mixtral", mixtral, mixtral_windows, mtp=None, default_eos=(2,), default_theta=1e6, default_eps=1e-5
    ),
    "MiniMaxM2ForCausalLM": Family(
        "minimax_m2",
        minimax_m2,
        rotated_share=minimax_m2_rotated,
        mtp=None,
        default_eos=(200_020,),
        default_theta=5e6,
    ),
    "Glm4MoeForCausalLM": Family("glm4_moe", glm4_moe, rotated_share=lambda _: 0.5, mtp=GLM_MTP, default_eps=1e-5),
    "GptOssForCausalLM": Family(
        "gpt_oss",
        gpt_oss,
        gpt_oss_windows,
        default_theta=150_000.0,
        default_eps=1e-5,
        quantised_experts=True,
        mtp=None,
        absent={
            "num_local_experts": 128,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": replace(GEMMA3, name="gemma3"),
}
OF_THE_WHOLE: Final = ("architectures", "dtype", "torch_dtype", "eos_token_id", "quantization_config")


def text_fields(config: JsonFields) -> JsonFields:
    """The fields of the model of texts: those of text_config if there are other parts beside it, and what transformers
    takes for absent ones."""
    names = config.values.get("architectures")
    family = FAMILIES.get(names[0]) if isinstance(names, list) and len(names) == 1 and names[0] in FAMILIES else None
    if family is None or not family.absent:
        return config
    values, where = config.values, config.where
    if config.has("text_config"):
        inner = config.nested("text_config")
        values = {name: values[name] for name in OF_THE_WHOLE if name in values} | inner.values
        values["architectures"], where = names, inner.where
    written = {name: value for name, value in values.items() if value is not None or name not in family.absent}
    return JsonFields({**family.absent, **written}, where)


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
