"""What each request must become, computed token by token without KV, batches, workers or streams."""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from model.sampler import mask_logits, sample
from model.sampling_input import AskingRows, Banned, ParamColumns, SamplingInput
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob
from protocol.messages_gateway import FinishReason, SamplingParams, finish_reason
from tests.decode.driving import VOCAB
from tests.doubles.hash_model import FakeRunner, mix_int
from tests.grammars import may_follow
from tests.ruling import ruled

FAKE = FakeRunner(vocab_size=VOCAB, context_length=256)


@cache
def expected(prompt: tuple[int, ...], params: SamplingParams, choice: int) -> tuple[tuple[int, ...], FinishReason]:
    """The tokens of one choice, and why it ends."""
    tokens, reason, _ = scored(prompt, params, choice)
    return tokens, reason


def check_logprobs(
    found: Mapping[int, TokenLogprob],
    prompt: tuple[int, ...],
    params: SamplingParams,
    choice: int,
    tokens: Sequence[int],
    num_replayed: int = 0,
) -> None:
    """Asserts that each token but the replayed ones has what it should have, if it is asked for. `found`: by place."""
    if params.logprobs is None:
        assert not found, "nobody has asked for log-probabilities"
        return
    _, _, places = scored(prompt, params, choice)
    assert sorted(found) == list(range(num_replayed, len(tokens))), f"scores of {sorted(found)}, {len(tokens)} tokens"
    for place, token in enumerate(tokens[num_replayed:], num_replayed):
        _check_token(found[place], token, places[place], params.logprobs.num_top, f"place {place}")


def check_prompt_logprobs(
    found: Sequence[TokenLogprob], prompt: tuple[int, ...], asked: PromptLogprobsAsked | None, *, is_whole: bool
) -> None:
    """Asserts that prompt tokens have what they should have, from the first one on that is asked for. `is_whole`: none
    may be missing, because tokens of the answer have come."""
    num_asked = 0 if asked is None else max(len(prompt) - asked.start, 0)
    assert len(found) == num_asked or (len(found) < num_asked and not is_whole), f"{len(found)} scores of {num_asked}"
    if asked is None:
        return
    places = _places_of(prompt)
    for place, got in enumerate(found, asked.start):
        _check_token(got, prompt[place], places[place - 1], asked.num_top, f"prompt token {place}")


def _check_token(got: TokenLogprob, token: int, right_V: Sequence[float], num_top: int, where: str) -> None:
    assert _is_near(got.logprob, right_V[token]), f"{token}, {where}: {got.logprob}, expected {right_V[token]}"
    assert got.rank == 1 + sum(each > right_V[token] + 1e-4 for each in right_V), f"rank {got.rank}, {where}"
    best = sorted(right_V, reverse=True)[:num_top]
    assert len(got.top) == len(best) == len({each for each, _ in got.top}), f"{got.top}, {where}"
    for (other, logprob), value in zip(got.top, best, strict=True):
        assert _is_near(logprob, right_V[other]) and _is_near(logprob, value), f"{other}, {where}: {logprob}"


@cache
def _places_of(prompt: tuple[int, ...]) -> list[list[float]]:
    """The log-probabilities of all tokens behind each token of a prompt."""
    model, places = _Model(), list[list[float]]()
    for token in prompt:
        likeliest = model.read([token])
        logits = torch.zeros(VOCAB, dtype=torch.float64)
        logits[likeliest] = 100.0
        places.append(logits.log_softmax(0).tolist())
    return places


def _is_near(one: float, other: float) -> bool:
    return one == other or abs(one - other) < 1e-4


@cache
def scored(
    prompt: tuple[int, ...], params: SamplingParams, choice: int
) -> tuple[tuple[int, ...], FinishReason, list[list[float]]]:
    """The same with the log-probabilities of all tokens at each place."""
    model = _Model()
    outputs: list[int] = []
    places: list[list[float]] = []
    unread: Sequence[int] = prompt
    while True:
        likeliest = model.read(unread)
        logits = [0.0] * VOCAB
        logits[likeliest] = 100.0
        raw = logits
        if params.rules is not None:
            logits = ruled(logits, prompt, outputs, params.rules)
        if params.grammar:
            allowed = may_follow(outputs, params)
            logits = [logit if token in allowed else float("-inf") for token, logit in enumerate(logits)]
        logits_1V = torch.tensor([logits])
        position = len(prompt) + len(outputs)
        banned = tuple(sorted(params.ending_ids)) if len(outputs) < params.min_tokens else ()
        row = _row(params, choice, position, banned)
        token = int(sample(logits_1V, row))
        if params.logprobs is not None:
            drawn = _drawn_from(logits_1V, banned, params, row) if params.logprobs.processed else torch.tensor([raw])
            places.append(drawn[0].double().log_softmax(0).tolist())
        outputs.append(token)
        unread = [token]
        if (reason := finish_reason(params, len(outputs), token)) is not None:
            return tuple(outputs), reason, places


def _drawn_from(logits_1V: Tensor, banned: tuple[int, ...], params: SamplingParams, row: SamplingInput) -> Tensor:
    """What the token is drawn from, behind bans, temperature and masks."""
    logits_1V = logits_1V.clone()
    logits_1V[0, list(banned)] = float("-inf")
    return logits_1V if params.temperature == 0 else mask_logits(logits_1V / params.temperature, row)


class _Model:
    """The fake model without KV: the sum of the hashes of what it has read."""

    def __init__(self) -> None:
        self._total, self._length = 0, 0

    def read(self, tokens: Sequence[int]) -> int:
        """Reads on; the likeliest next token."""
        for token in tokens:
            self._total += sum(_hash(token, self._length, layer) for layer in range(FAKE.num_layers))
            self._length += 1
        return (mix_int(self._total & ((1 << 64) - 1)) >> 1) % VOCAB


@cache
def _hash(token: int, position: int, layer: int) -> int:
    return FAKE.expected_hash(token, position, layer)


def _row(params: SamplingParams, choice: int, position: int, banned: tuple[int, ...]) -> SamplingInput:
    first = torch.tensor([0])
    return SamplingInput(
        ParamColumns(
            temperature_L=torch.tensor([params.temperature]),
            top_k_L=torch.tensor([params.top_k]),
            top_p_L=torch.tensor([params.top_p]),
            min_p_L=torch.tensor([params.min_p]),
            seed_L=torch.tensor([params.seed]),
            choice_L=torch.tensor([choice]),
        ),
        AskingRows(
            top_k_N=first if params.top_k > 0 else None,
            top_p_N=first if params.top_p < 1 else None,
            min_p_N=first if params.min_p > 0 else None,
            all_greedy=params.temperature == 0,
        ),
        position_L=torch.tensor([position]),
        banned=Banned(first, torch.tensor([banned]), torch.tensor([position + 1])) if banned else None,
    )
