"""How a layer weighs the tokens that it sees: what attention needs beside queries, keys and values.

Shapes: H query heads.
"""

from dataclasses import dataclass
from typing import Final

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scoring:
    """By default a token sees all tokens before it and itself, and products of q and k are divided by sqrt(head_dim).

    A sink is a score beside those of tokens. It takes a share of the weights, and has no value.
    """

    window: int = 0  # tokens that a token sees, itself and those before it; 0: all
    scale: float | None = None  # of products of q and k
    sinks_H: Tensor | None = None  # float32


PLAIN: Final = Scoring()
