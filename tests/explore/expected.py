"""What each request must become, computed token by token without KV, batches, workers or streams."""

import math
from collections.abc import Sequence
from functools import cache

import torch

from model.sampler import AskingRows, Banned, ParamColumns, SamplingInput, sample
from protocol.messages_gateway import FinishReason, SamplingParams, finish_reason
from tests.decode.driving import VOCAB
from tests.doubles.hash_model import FakeRunner, mix_int
from tests.ruling import ruled

FAKE = FakeRunner(vocab_size=VOCAB, context_length=256)


@cache
def expected(prompt: tuple[int, ...], params: SamplingParams, choice: int) -> tuple[tuple[int, ...], FinishReason]:
    """The tokens of one choice, and why it ends."""
    model = _Model()
    outputs: list[int] = []
    unread: Sequence[int] = prompt
    while True:
        likeliest = model.read(unread)
        logits = [0.0] * VOCAB
        logits[likeliest] = 100.0
        if params.rules is not None:
            logits = ruled(logits, prompt, outputs, params.rules)
        logits_1V = torch.tensor([logits])
        position = len(prompt) + len(outputs)
        banned = tuple(sorted(params.ending_ids)) if len(outputs) < params.min_tokens else ()
        token = int(sample(logits_1V, _row(params, choice, position, banned)))
        outputs.append(token)
        unread = [token]
        if (reason := finish_reason(params, len(outputs), token)) is not None:
            return tuple(outputs), reason


@cache
def expected_scores(prompt: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[tuple[float, int, int], ...]:
    """(log-probability, rank, likeliest token) of each output, by the model's own logits: 100 for one token, else 0."""
    model, found = _Model(), list[tuple[float, int, int]]()
    unread: Sequence[int] = prompt
    log_total = 100 + math.log1p((VOCAB - 1) * math.exp(-100))
    for token in outputs:
        likeliest = model.read(unread)
        found.append((100 - log_total, 1, likeliest) if token == likeliest else (-log_total, 2, likeliest))
        unread = [token]
    return tuple(found)


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
