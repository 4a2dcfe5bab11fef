"""Random routers, and the experts that their formula gives a token, in plain Python."""

from collections.abc import Callable

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from runtime.model_parts import RouterConfig


@st.composite
def routers(draw: Callable[..., int]) -> tuple[RouterConfig, int]:
    """A router and the number of its experts."""
    groups, size = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    chosen_groups = draw(st.integers(1, groups))
    most = size * chosen_groups
    return RouterConfig(
        draw(st.integers(1, most)),
        ("softmax", "sigmoid")[draw(st.integers(0, 1))],
        has_choice_bias=bool(draw(st.integers(0, 1))),
        num_groups=groups,
        num_chosen_groups=chosen_groups,
        normalised=bool(draw(st.integers(0, 1))),
        scale=draw(st.integers(1, 3)) / 2,
    ), groups * size


def routed(config: RouterConfig, scores: list[float], bias: list[float]) -> tuple[list[int], list[float]]:
    """The experts of one token, ascending, and their weights: in plain Python, but that sums are those of float32."""
    ranked = [np.float32(score) + np.float32(each) for score, each in zip(scores, bias, strict=True)]
    size = len(scores) // config.num_groups
    groups = range(config.num_groups)
    of_group = [sum(sorted(ranked[group * size : (group + 1) * size])[-2:]) for group in groups]
    chosen_groups = sorted(groups, key=lambda group: (-of_group[group], group))[: config.num_chosen_groups]
    allowed = [expert for expert in range(len(scores)) if expert // size in chosen_groups]
    chosen = sorted(sorted(allowed, key=lambda expert: (-ranked[expert], expert))[: config.num_chosen])
    total = sum(scores[expert] for expert in chosen) if config.normalised else 1.0
    return chosen, [scores[expert] / total * config.scale for expert in chosen]


def numbers(*shape: int, seed: int, whole: bool = False) -> Tensor:
    """Random numbers around 0, or whole ones."""
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return torch.randint(-3, 4, shape, generator=generator).float()
    return torch.randn(shape, generator=generator)
