"""How far each token of an answer was from being another one, by transformers' logits in float32.

Another chunk size, or KV from the cache, may round differently. So equal tokens can be promised only where the margin
is larger than what rounding moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.sampler import uniform
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import SamplingParams
from tests.ruling import ruled

LOGIT_BOUND = 2e-4  # between two logits: more than rounding moves them
PROBABILITY_BOUND = 1e-4  # between two sums of probabilities


@dataclass(frozen=True)
class Margin:
    """What transformers' logits draw, and whether rounding could not change it."""

    token: int
    is_safe: bool


@torch.no_grad()
def margins(
    model: torch.nn.Module, prompt: Sequence[int], outputs: Sequence[int], params: SamplingParams, choice: int = 0
) -> list[Margin]:
    """One for each output, as if all outputs before it were given."""
    logits_TV = model(torch.tensor([[*prompt, *outputs[:-1]]])).logits[0, len(prompt) - 1 :].double()
    if params.rules is not None:
        rows = [ruled(row, prompt, outputs[:place], params.rules) for place, row in enumerate(logits_TV.tolist())]
        logits_TV = torch.tensor(rows, dtype=torch.float64)
    if params.temperature == 0:
        return [_greedy(logits_V) for logits_V in logits_TV]
    found = []
    for place, logits_V in enumerate(logits_TV):
        columns = (torch.tensor([value]) for value in (params.seed or 0, choice, len(prompt) + place))
        found.append(_drawn(logits_V / params.temperature, params, float(uniform(*columns))))
    return found


def _greedy(logits_V: Tensor) -> Margin:
    best = logits_V.topk(2)
    return Margin(int(best.indices[0]), float(best.values[0] - best.values[1]) > LOGIT_BOUND)


def _drawn(scaled_V: Tensor, params: SamplingParams, uniform: float) -> Margin:
    """Cuts at top-k, then at top-p, and draws from the rest in the order of the ids."""
    ordered_V, ids_V = scaled_V.sort(descending=True)
    num_kept, is_safe = len(ids_V), True

    if params.top_k:
        num_kept = params.top_k
        is_safe = float(ordered_V[num_kept - 1] - ordered_V[num_kept]) > LOGIT_BOUND
    if params.top_p < 1:
        sums_K = ordered_V[:num_kept].softmax(dim=0).cumsum(dim=0)
        is_safe &= float((sums_K - params.top_p).abs().min()) > PROBABILITY_BOUND
        num_kept = int((sums_K < params.top_p).sum()) + 1
        is_safe &= num_kept == len(ids_V) or float(ordered_V[num_kept - 1] - ordered_V[num_kept]) > LOGIT_BOUND

    kept_V = torch.full_like(scaled_V, float("-inf"))
    kept_V[ids_V[:num_kept]] = ordered_V[:num_kept]
    sums_V = kept_V.softmax(dim=0).cumsum(dim=0)
    token = int((sums_V <= uniform).sum())
    edges = [float(sums_V[token]), float(sums_V[token - 1]) if token else -1.0]
    return Margin(token, is_safe and min(abs(edge - uniform) for edge in edges) > PROBABILITY_BOUND)


@torch.no_grad()
def check_logprobs(
    model: torch.nn.Module,
    prompt: Sequence[int],
    outputs: Sequence[int],
    found: Mapping[int, TokenLogprob],
    temperature: float = 1,
) -> None:
    """Asserts that `found`, by place, are the log-probabilities that transformers' logits give, within 1e-4."""
    logits_TV = model(torch.tensor([[*prompt, *outputs[:-1]]])).logits[0, len(prompt) - 1 :]
    _check(logits_TV / temperature, outputs, found)


@torch.no_grad()
def check_prompt_logprobs(model: torch.nn.Module, prompt: Sequence[int], found: Mapping[int, TokenLogprob]) -> None:
    """The same of a prompt's own tokens, by position."""
    logits_TV = model(torch.tensor([list(prompt)])).logits[0]
    _check(logits_TV[:-1], prompt[1:], {place - 1: scored for place, scored in found.items()})


def _check(logits_TV: Tensor, tokens: Sequence[int], found: Mapping[int, TokenLogprob]) -> None:
    right_TV = logits_TV.double().log_softmax(-1)
    for place, scored in found.items():
        right_V = right_TV[place]
        chosen = right_V[tokens[place]]
        assert abs(scored.logprob - float(chosen)) < 1e-4, f"token {tokens[place]} at {place}"
        ranks = [1 + int((right_V > chosen + bound).sum()) for bound in (1e-4, -1e-4)]
        assert ranks[0] <= scored.rank <= ranks[1], f"rank {scored.rank} at {place}, expected {ranks}"
        best = right_V.topk(len(scored.top)).values.tolist()
        assert len({token for token, _ in scored.top}) == len(best)
        for (token, logprob), value in zip(scored.top, best, strict=True):
            assert abs(logprob - float(right_V[token])) < 1e-4 and abs(logprob - value) < 1e-4, f"{token} at {place}"
