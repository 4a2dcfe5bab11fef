"""The parts of a decoder layer as data: what mixes the tokens, and what feeds forward. A family chooses them.

`model/weights.py` makes layers of them. `field` of a part is the field of config.json that has its width: errors name
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of some layers. Only `llama3` uses the two fields after `factor`, only `yarn` those of yarn."""

    theta: float
    kind: str = "default"  # default | linear | llama3 | yarn
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    num_rotated: int | None = None  # numbers of a head that are rotated, the first ones; None: all
    beta_fast: float = 32.0  # yarn: pairs that turn more often within the original context are not stretched
    beta_slow: float = 1.0  # yarn: pairs that turn less often are stretched by `factor`
    truncate: bool = True  # yarn: the range between them begins and ends at whole pairs
    attention_factor: float = 1.0  # of cosines and sines


@dataclass(frozen=True)
class AttentionConfig:
    """A mixer: each token attends to those before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = "none"  # none | head: of each head by itself | all: of all heads together
    window: int = 0  # tokens that a token sees, itself and those before it; 0: all
    scale: float | None = None  # of products of queries and keys; None: 1 / sqrt(head_dim)
    has_sinks: bool = False  # each head has a score that takes a share of the weights, and has no value
    rope: int = 0  # which of the model's ropes


@dataclass(frozen=True)
class MlpConfig:
    """A feed: one dense MLP."""

    width: int  # of its intermediate values
    bias: bool = False
    field: str = "intermediate_size"
    gate: str = "silu"  # silu | gelu_tanh | clamped: (up + 1) * gate * sigmoid(alpha * gate)
    limit: float = 0.0  # clamped: gate is at most this, up lies between this and its negative
    alpha: float = 0.0  # clamped

    @property
    def active_width(self) -> int:
        """How many intermediate values one token has."""
        return self.width

    @property
    def num_scores(self) -> int:
        """How many experts are scored for one token."""
        return 0

    @property
    def num_results(self) -> int:
        """How many experts give one token a result."""
        return 0

    @property
    def shared_out(self) -> Iterator["MlpConfig"]:
        """The MLPs whose intermediate values the ranks of a group share out."""
        yield self


@dataclass(frozen=True)
class RouterConfig:
    """How the experts of a token are chosen and weighted, by a score for each."""

    num_chosen: int  # experts of a token
    scores: str = "softmax"  # softmax | sigmoid, of the logits
    has_choice_bias: bool = False  # added to the scores for the choice, not for the weights
    num_groups: int = 1  # equal groups of experts, one behind the other
    num_chosen_groups: int = 1  # only experts of these are chosen: those with the best two scores together
    normalised: bool = True  # the weights of a token are divided by their sum
    scale: float = 1.0  # of the weights
    has_bias: bool = False  # of the logits


@dataclass(frozen=True)
class ExpertNames:
    """What a checkpoint calls the tensors of experts. All but `block` are names within it."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    router: str = "gate"
    choice_bias: str = "gate.e_score_correction_bias"
    is_stacked: bool = False  # one tensor has all experts, and gate and up alternate


DEFAULT_NAMES: Final = ExpertNames()


@dataclass(frozen=True)
class MtpNames:
    """What a checkpoint calls the tensors of the draft layers in the model's own folder (model/mtp.py). All but
    `layers` are names within such a layer."""

    layers: str
    token_norm: str
    hidden_norm: str
    project: str
    final_norm: str
    is_behind: bool = False  # `layers` are those of the model, and draft layers have the numbers behind its last one
    token_first: bool = False  # `project` reads the token before the hidden state
    embedding: str | None = None  # a layer may have its own; None: it has the model's
    head: str | None = None


MIMO_MTP: Final = MtpNames("mtp_layers", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
GLM_MTP: Final = MtpNames(
    "layers",
    "enorm",
    "hnorm",
    "eh_proj",
    "shared_head.norm",
    is_behind=True,
    token_first=True,
    embedding="embed_tokens",
    head="shared_head.head",
)


@dataclass(frozen=True)
class ExpertsConfig:
    """A feed: a mixture of experts. Each token goes to a few of them, and to the shared one if there is one."""

    count: int
    router: RouterConfig
    expert: MlpConfig
    shared: MlpConfig | None = None
    names: ExpertNames = DEFAULT_NAMES

    @property
    def active_width(self) -> int:
        """See MlpConfig."""
        return self.router.num_chosen * self.expert.width + (self.shared.width if self.shared else 0)

    @property
    def num_scores(self) -> int:
        """See MlpConfig."""
        return self.count

    @property
    def num_results(self) -> int:
        """See MlpConfig."""
        return self.router.num_chosen

    @property
    def shared_out(self) -> Iterator[MlpConfig]:
        """See MlpConfig."""
        yield from filter(None, (self.expert, self.shared))


FeedConfig = MlpConfig | ExpertsConfig


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer: norm, mixer, addition, norm, feed, addition."""

    mixer: AttentionConfig
    feed: FeedConfig
    has_outer_norms: bool = False  # what mixer and feed give has a norm, too, before it is added
