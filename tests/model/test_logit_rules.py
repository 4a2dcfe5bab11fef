"""Logit rules in batches: they are those of plain Python and of transformers, row by row."""

import random

import pytest
import torch
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from model.logit_rules import apply_rules
from protocol.logit_rules import LogitRules
from protocol.messages_gateway import SamplingParams
from scheduler.execution.sampling_columns import rule_columns
from scheduler.plan import Draw
from tests.ruling import random_rules, ruled

CPU = torch.device("cpu")
VOCAB = 23
WIDTH = 40


def applied(
    logits_LV: Tensor, rules: list[LogitRules | None], contexts: list[list[int]], prompt_lens: list[int]
) -> Tensor:
    """What the batch makes of them. What lies behind a context holds tokens that must not count."""
    draws = [
        Draw(row + 1, 0, 0, SamplingParams(9, rules=each), until=length)
        for row, (each, length) in enumerate(zip(rules, prompt_lens, strict=True))
    ]
    columns = rule_columns(draws, CPU)
    assert columns is not None
    history_LT = torch.randint(0, VOCAB, (len(draws), WIDTH))
    for row, context in enumerate(contexts):
        history_LT[row, : len(context)] = torch.tensor(context)
    position_L = torch.tensor([len(context) for context in contexts])
    history_NT = history_LT[columns.rows_N] if columns.reads_context else None
    return apply_rules(logits_LV, position_L, columns, history_NT)


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_is_each_row_alone_in_plain_python(seed: int) -> None:
    rng = random.Random(seed)
    num_rows = rng.randint(1, 6)
    rules = [random_rules(rng, VOCAB) if rng.random() < 0.8 else None for _ in range(num_rows)]
    rules[0] = random_rules(rng, VOCAB)
    prompt_lens = [rng.randint(1, 12) for _ in rules]
    contexts = [rng.choices(range(6), k=length + rng.randint(0, 20)) for length in prompt_lens]
    logits_LV = torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed))
    before_LV = logits_LV.clone()

    found_LV = applied(logits_LV, rules, contexts, prompt_lens)

    assert torch.equal(logits_LV, before_LV)
    for row, (each, context, length) in enumerate(zip(rules, contexts, prompt_lens, strict=True)):
        wanted = logits_LV[row].tolist()
        if each is not None:
            wanted = ruled(wanted, context[:length], context[length:], each)
        torch.testing.assert_close(found_LV[row], torch.tensor(wanted), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("penalty", (0.5, 1.3, 2.0))
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    context, logits_1V = [3, 5, 5, 9, 22], torch.randn(1, VOCAB)
    found = applied(logits_1V, [LogitRules(repetition_penalty=penalty)], [context], [3])
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([context]), logits_1V.clone())
    torch.testing.assert_close(found, wanted)


def test_biases_are_those_of_transformers() -> None:
    logits_1V = torch.randn(1, VOCAB)
    found = applied(logits_1V, [LogitRules(logit_bias=((4, -3.5), (9, 100.0)))], [[1]], [1])
    wanted = SequenceBiasLogitsProcessor({(4,): -3.5, (9,): 100.0})(torch.tensor([[1]]), logits_1V.clone())
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("outputs", ([], [7], [8], [7, 8], [8, 7, 8], [6, 7], [1, 2, 3]))
def test_bad_words_are_those_of_transformers_among_the_outputs(outputs: list[int]) -> None:
    words = [[7, 8], [8, 7, 8, 9], [4], [6, 7, 1]]
    logits_1V = torch.randn(1, VOCAB)
    rules = LogitRules(bad_words=tuple(map(tuple, words)))
    found = applied(logits_1V, [rules], [[2, 6, *outputs]], [2])
    wanted = NoBadWordsLogitsProcessor(words)(torch.tensor([[0, *outputs]]), logits_1V.clone())
    torch.testing.assert_close(found, wanted)


def test_a_bad_word_that_begins_in_the_prompt_may_end() -> None:
    rules = LogitRules(bad_words=((6, 7),))
    found = applied(torch.zeros(2, VOCAB), [rules, rules], [[5, 6], [5, 6]], [2, 1])
    assert found[:, 7].tolist() == [0.0, float("-inf")]
