"""The parts of a decoder layer as data: what mixes the tokens, and what feeds forward. A family chooses them.

`model/weights.py` makes layers of them. `field` of a part is the field of config.json that has its width: errors name
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass


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
class AttentionConfig:
    """A mixer: each token attends to those before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False


@dataclass(frozen=True)
class MlpConfig:
    """A feed: one dense MLP."""

    width: int  # of its intermediate values
    bias: bool = False
    field: str = "intermediate_size"

    @property
    def active_width(self) -> int:
        """How many intermediate values one token has."""
        return self.width

    @property
    def shared_out(self) -> Iterator["MlpConfig"]:
        """The MLPs whose intermediate values the ranks of a group share out."""
        yield self


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer: norm, mixer, addition, norm, feed, addition."""

    mixer: AttentionConfig
    feed: MlpConfig
