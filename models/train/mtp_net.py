"""Several draft layers as a plain torch module, in MiMo's layout: the i-th drafts the i-th next token.

Slot i of layer j (from 0) holds the pair (token i + 1 + j, what layer j - 1 gave at slot i; the target's feature for
layer 0) and predicts token i + 2 + j. A layer reads true tokens in training: in a chain the same tokens are proposals
that were right, or nothing behind them counts.
Shapes: R rows, S slots of a row, E hidden, N chosen slots, V vocabulary.
"""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.train.draft_net import EPS, DraftNet, Layer, rotation_of
from models.train.recipe import Shape


class MtpLayer(Layer):
    """A decoder layer behind a product that joins a token's embedding and a hidden state, each normed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape.hidden_size)
        self.token_layernorm = nn.RMSNorm(shape.hidden_size, EPS)
        self.hidden_layernorm = nn.RMSNorm(shape.hidden_size, EPS)
        self.input_proj = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, EPS)
        self.final_layernorm = nn.RMSNorm(shape.hidden_size, EPS)

    def forward(self, embedded_RSE: Tensor, hidden_RSE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """The hidden states (R, S, E) for the next layer and for the head."""
        both = (self.hidden_layernorm(hidden_RSE), self.token_layernorm(embedded_RSE))
        x_RSE = self.input_proj(torch.cat(both, dim=-1))
        q, k, v = self.self_attn.heads(self.input_layernorm(x_RSE), rotation)
        attended_RHSD = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_RSE = x_RSE + self.self_attn.o_proj(attended_RHSD.transpose(1, 2).flatten(2))
        x_RSE = x_RSE + self.mlp(self.post_attention_layernorm(x_RSE))
        normed: Tensor = self.final_layernorm(x_RSE)
        return normed


class MtpNet(DraftNet):
    """`model.mtp_layers.{i}` are the names in the target's checkpoint. The head is the target's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        layers = nn.ModuleList([MtpLayer(shape) for _ in range(shape.num_layers)])
        self.model = nn.ModuleDict({"mtp_layers": layers})

    @property
    def layers(self) -> list[MtpLayer]:
        """Its layers, the first one first."""
        return [cast(MtpLayer, layer) for layer in cast(nn.ModuleList, self.model["mtp_layers"])]

    def own_logits(self, hidden_NE: Tensor, embedding_VE: Tensor) -> Tensor:
        """By the target's head, which is its embedding."""
        return hidden_NE @ embedding_VE.T

    def unroll(self, embedded_RSE: Tensor, features_RSF: Tensor, num_steps: int) -> Iterator[Tensor]:
        """See DraftNet.unroll: the output of step s at slot p predicts token p + 2. There are as many steps as layers,
        at most."""
        rotation = rotation_of(embedded_RSE.shape[1], self.shape)
        hidden_RSE = features_RSF
        for step, layer in enumerate(self.layers[:num_steps]):
            hidden_RSE = layer(embedded_RSE.roll(-step, dims=1), hidden_RSE, rotation)
            yield hidden_RSE.roll(step, dims=1)
