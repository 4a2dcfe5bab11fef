"""How close transformers' routers came to another choice. Where that is more than rounding moves, tokens can be equal.

Shapes: T tokens, X experts, G groups.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def router_margin(model: nn.Module, texts: Sequence[Sequence[int]]) -> float:
    """The least gap between the last expert (or group) that was chosen for a token and the best of the others.

    Over all tokens and layers of these texts. Infinite for a model without routers.
    """
    gaps = [float("inf")]
    with _watched(model, gaps):
        for text in texts:
            model(torch.tensor([list(text)]))
    return min(gaps)


@contextmanager
def _watched(model: nn.Module, gaps: list[float]) -> Iterator[None]:
    def note(router: nn.Module, args: tuple[Any, ...], out: tuple[Tensor, ...]) -> None:
        bias_X = args[1] if len(args) > 1 else getattr(router, "e_score_correction_bias", None)
        scores_TX = out[0] if bias_X is None else out[0].sigmoid() + bias_X  # the softmax keeps the order of logits
        gaps.extend(_gaps(router, scores_TX))

    routers = [each for each in model.modules() if type(each).__name__.lower().endswith("topkrouter")]
    hooks = [router.register_forward_hook(note) for router in routers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _gaps(router: Any, scores_TX: Tensor) -> Iterator[float]:
    num_groups = getattr(router, "num_group", 1)
    if num_groups > 1:
        scores_TGX = scores_TX.unflatten(1, (num_groups, -1))
        groups_TG = scores_TGX.topk(2).values.sum(-1)
        yield _gap(groups_TG, router.topk_group)
        is_left_TG = groups_TG < groups_TG.topk(router.topk_group).values[:, -1:]
        scores_TX = scores_TGX.masked_fill(is_left_TG[..., None], -torch.inf).flatten(1)
    yield _gap(scores_TX, router.top_k)


def _gap(scores_TX: Tensor, count: int) -> float:
    if count == scores_TX.shape[1]:
        return float("inf")
    best_TX = scores_TX.sort(dim=-1, descending=True).values
    return float((best_TX[:, count - 1] - best_TX[:, count]).min())
