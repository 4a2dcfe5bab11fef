"""A draft as a plain torch module: it trains and is measured on whole texts, without pages.

Slot i of a draft holds the pair (token i + 1, the target's feature at i). Its output stands for the target's feature
at i + 1 and predicts token i + 2. `unroll` runs several steps from every slot at once (training-time test, Li et al.
2025, EAGLE-3). Step s at slot p takes the feature that step s - 1 gave at slot p - 1. It attends to the s - 1 slots
before p as the steps before it computed them, and to all earlier slots as the first step did.
Shapes: R rows, S slots of a row, E hidden, F numbers of a feature, H query heads, D head_dim, N chosen slots,
V vocabulary.
"""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.train.recipe import Shape

EPS = 1e-6


class Attention(nn.Module):
    """Qwen3's attention: norms on queries and keys, rotation by slot. `inputs` is the width of what it reads."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(inputs, queries, bias=False)
        self.k_proj = nn.Linear(inputs, keys, bias=False)
        self.v_proj = nn.Linear(inputs, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, EPS)
        self.k_norm = nn.RMSNorm(shape.head_dim, EPS)

    def heads(self, x_RSE: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (R, H, S, D) each: keys and values repeated for the queries that share them."""
        q, k, v = (
            proj(x_RSE).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.shape.num_heads // self.shape.num_kv_heads
        q, k = _rotate(self.q_norm(q), *rotation), _rotate(self.k_norm(k), *rotation)
        return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)


class Mlp(nn.Module):
    """silu(gate) * up."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of `x`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A decoder layer without a norm before its attention, as EAGLE has it. `inputs`: the width its attention reads."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, inputs)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, EPS)
        self.mlp = Mlp(shape)


class Eagle3Layer(Layer):
    """EAGLE-3's: its attention reads an embedding and a hidden state, each with a norm of its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 2 * shape.hidden_size)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, EPS)
        self.hidden_norm = nn.RMSNorm(shape.hidden_size, EPS)


class DraftNet(nn.Module):
    """What the drafts have in common: one layer, and how it runs."""

    shape: Shape
    fc: nn.Linear

    @property
    def layer(self) -> Layer:
        """Its only layer."""
        raise NotImplementedError

    @property
    def target_ids(self) -> Tensor:
        """The target's ids of the tokens that the draft knows, ascending."""
        return torch.arange(self.shape.vocab_size)

    def fuse(self, features_RSF: Tensor) -> Tensor:
        """The first step's hidden states (R, S, E) from the target's features."""
        raise NotImplementedError

    def read(self, embedded_RSE: Tensor, hidden_RSE: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer adds to, and what its attention reads."""
        raise NotImplementedError

    def own_logits(self, hidden_NE: Tensor, embedding_VE: Tensor) -> Tensor:
        """Logits of the tokens in `target_ids`. `embedding_VE` is the target's."""
        raise NotImplementedError

    def logits(self, hidden_NE: Tensor, embedding_VE: Tensor) -> Tensor:
        """(N, V): -inf at tokens that the draft does not know."""
        own = self.own_logits(hidden_NE, embedding_VE)
        all_NV = own.new_full((len(own), len(embedding_VE)), float("-inf"))
        return all_NV.index_copy(1, self.target_ids, own)

    def unroll(self, embedded_RSE: Tensor, features_RSF: Tensor, num_steps: int) -> Iterator[Tensor]:
        """The output (R, S, E) of every step at every slot. Step s is meaningless in the first s - 1 slots.

        `embedded_RSE[:, i]` is the embedding of token i + 1, `features_RSF[:, i]` the target's feature at i.
        """
        attention = self.layer.self_attn
        rotation = rotation_of(embedded_RSE.shape[1], self.shape)
        steps: list[tuple[Tensor, Tensor]] = []  # keys and values of each step
        hidden_RSE = self.fuse(features_RSF)
        for step in range(num_steps):
            if step:
                hidden_RSE = hidden_RSE.roll(1, dims=1)
            x_RSE, inputs = self.read(embedded_RSE, hidden_RSE)
            q_RHSD, k_RHSD, v_RHSD = attention.heads(inputs, rotation)
            steps.append((k_RHSD, v_RHSD))
            attended_RHSD = _attend(q_RHSD, steps)
            x_RSE = x_RSE + attention.o_proj(attended_RHSD.transpose(1, 2).flatten(2))
            hidden_RSE = x_RSE + self.layer.mlp(self.layer.post_attention_layernorm(x_RSE))
            yield hidden_RSE


class EagleNet(DraftNet):
    """EAGLE (Li et al. 2024): `fc` fuses embedding and feature; the output is a feature, for the target's head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(shape, shape.hidden_size)])

    @property
    def layer(self) -> Layer:
        """See DraftNet."""
        return cast(Layer, self.layers[0])

    def fuse(self, features_RSF: Tensor) -> Tensor:
        """The same: the output of the target's final norm."""
        return features_RSF

    def read(self, embedded_RSE: Tensor, hidden_RSE: Tensor) -> tuple[Tensor, Tensor]:
        """Both are the fused input."""
        x_RSE = self.fc(torch.cat((embedded_RSE, hidden_RSE), dim=-1))
        return x_RSE, x_RSE

    def own_logits(self, hidden_NE: Tensor, embedding_VE: Tensor) -> Tensor:
        """By the target's head, which is its embedding."""
        return hidden_NE @ embedding_VE.T


class Eagle3Net(DraftNet):
    """EAGLE-3 (Li et al. 2025): `fc` fuses three features; attention reads the embedding beside them; a head of its own
    over the ids in `target_ids`."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, shape: Shape, target_ids: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.hidden_size, shape.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden_size, EPS)
        self.lm_head = nn.Linear(shape.hidden_size, len(target_ids), bias=False)
        self.register_buffer("d2t", target_ids - torch.arange(len(target_ids)))
        self.register_buffer("t2d", torch.zeros(shape.vocab_size, dtype=torch.bool).index_fill(0, target_ids, True))

    @property
    def layer(self) -> Layer:
        """See DraftNet."""
        return self.midlayer

    def fuse(self, features_RSF: Tensor) -> Tensor:
        """Three features side by side become one hidden state."""
        fused: Tensor = self.fc(features_RSF)
        return fused

    def read(self, embedded_RSE: Tensor, hidden_RSE: Tensor) -> tuple[Tensor, Tensor]:
        """The layer adds to the hidden state; its attention reads both, each normed."""
        both = (self.midlayer.input_layernorm(embedded_RSE), self.midlayer.hidden_norm(hidden_RSE))
        return hidden_RSE, torch.cat(both, dim=-1)

    @property
    def target_ids(self) -> Tensor:
        """Those of its head; `d2t` holds how far each lies behind the draft's own id."""
        return self.d2t + torch.arange(len(self.d2t))

    def own_logits(self, hidden_NE: Tensor, embedding_VE: Tensor) -> Tensor:
        """By its own head."""
        own: Tensor = self.lm_head(self.norm(hidden_NE))
        return own


def _attend(q_RHSD: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(R, H, S, D): slot p of the last step attends to the first step's slots up to p - (steps - 1), and to one slot of
    each later step: the slot that lies as many slots before p as steps ago."""
    (k_RHSD, v_RHSD), later = steps[0], steps[1:]
    num_slots = q_RHSD.shape[2]
    if not later:
        return F.scaled_dot_product_attention(q_RHSD, k_RHSD, v_RHSD, is_causal=True)

    q_RHSD = q_RHSD * q_RHSD.shape[-1] ** -0.5
    hidden_SS = torch.ones(num_slots, num_slots, dtype=torch.bool).triu(1 - len(later))
    scores = [(q_RHSD @ k_RHSD.transpose(2, 3)).masked_fill(hidden_SS, float("-inf"))]
    ago = range(len(later) - 1, -1, -1)
    scores += [(q_RHSD * k.roll(back, dims=2)).sum(-1, keepdim=True) for back, (k, _) in zip(ago, later, strict=True)]
    weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    out_RHSD = weights[..., :num_slots] @ v_RHSD
    for index, (back, (_, v)) in enumerate(zip(ago, later, strict=True)):
        out_RHSD = out_RHSD + weights[..., num_slots + index, None] * v.roll(back, dims=2)
    return out_RHSD


def rotation_of(num_slots: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines (S, D) of the slots."""
    inv_freq = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.arange(num_slots).float()[:, None] * inv_freq
    return torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()


def _rotate(x: Tensor, cos_SD: Tensor, sin_SD: Tensor) -> Tensor:
    return x * cos_SD + x.roll(x.shape[-1] // 2, -1) * sin_SD
