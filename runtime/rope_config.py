"""The rotary embedding of a config.json. Without torch, because the gateway reads configurations too."""

from dataclasses import dataclass

from runtime.json_fields import JsonFields

SUPPORTED_ROPE = "'default', 'linear' or 'llama3'"


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one model. Only `llama3` uses the last three fields."""

    theta: float
    kind: str = "default"  # default | linear | llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


def read_rope(config: JsonFields, max_position_embeddings: int) -> RopeConfig:
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
