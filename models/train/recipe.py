"""The shape of the bundled model and how it is trained: numbers only."""

from dataclasses import dataclass, field

from loadtest.bench_model import CONFIG
from models.train.special import END_OF_TEXT, SPECIAL_TOKENS, TURN_END

SAMPLING = {"temperature": 0.7, "top_k": 40, "top_p": 0.9}


@dataclass(frozen=True)
class Shape:
    """What config.json says. 1.86 million parameters, embeddings tied: 3.7 MB in bfloat16."""

    vocab_size: int = 1024
    hidden_size: int = 192
    intermediate_size: int = 320
    num_layers: int = 5
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class Recipe:
    """How the weights come about. One optimiser step sees `rows_per_step` rows of `row_tokens` tokens."""

    shape: Shape = field(default_factory=Shape)
    seed: int = 20
    num_steps: int = 720
    rows_per_step: int = 8
    row_tokens: int = 512
    warmup_steps: int = 30
    cooldown_share: float = 0.5
    matrix_lr: float = 0.02
    embedding_lr: float = 0.004
    weight_decay: float = 0.02
    max_grad_norm: float = 1.0
    num_threads: int = 2

    def lr_factor(self, step: int) -> float:
        """Warm-up, plateau, then a straight line down to 4% over the last `cooldown_share` of the steps."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        cooldown_steps = self.cooldown_share * self.num_steps
        return min(warmup, max(0.04, (self.num_steps - step) / cooldown_steps))


def config_json(shape: Shape) -> dict[str, object]:
    """config.json in the form that every Qwen3 loader reads."""
    return {
        **CONFIG,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "initializer_range": 0.03,
        "eos_token_id": SPECIAL_TOKENS.index(TURN_END),
        "pad_token_id": SPECIAL_TOKENS.index(END_OF_TEXT),
    }


def generation_config_json() -> dict[str, object]:
    """generation_config.json: both ends of text, and gentle sampling."""
    return {
        "do_sample": True,
        **SAMPLING,
        "eos_token_id": [SPECIAL_TOKENS.index(TURN_END), SPECIAL_TOKENS.index(END_OF_TEXT)],
        "pad_token_id": SPECIAL_TOKENS.index(END_OF_TEXT),
    }
