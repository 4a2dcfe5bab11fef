"""Which rules no request may have."""

import random

import pytest

from protocol.logit_rules import NO_RULES, LogitRules, rules_fault
from tests.ruling import random_rules, ruled

VOCAB = 10


@pytest.mark.parametrize(
    ("rules", "field", "words"),
    [
        (LogitRules(frequency_penalty=2.1), "frequency_penalty", "got 2.1, expected -2 to 2"),
        (LogitRules(presence_penalty=-3.0), "presence_penalty", "got -3.0, expected -2 to 2"),
        (LogitRules(repetition_penalty=0.0), "repetition_penalty", "got 0.0, expected 0.01 to 2"),
        (LogitRules(repetition_penalty=2.5), "repetition_penalty", "got 2.5, expected 0.01 to 2"),
        (LogitRules(logit_bias=((3, 101.0),)), "logit_bias", "got 101.0 for token 3, expected -100 to 100"),
        (LogitRules(logit_bias=((VOCAB, 1.0),)), "logit_bias", "got token id 10, expected ids in [0, 10)"),
        (LogitRules(logit_bias=((3, 1.0), (3, 2.0))), "logit_bias", "got a token twice, expected each once"),
        (LogitRules(allowed_token_ids=(2, -1)), "allowed_token_ids", "got token id -1, expected ids in [0, 10)"),
        (LogitRules(bad_words=((1, 10),)), "bad_words", "got token id 10, expected ids in [0, 10)"),
        (LogitRules(bad_words=((1,), ())), "bad_words", "got a word without tokens, expected at least one in each"),
        (
            LogitRules(allowed_token_ids=(2, 3), bad_words=((2,), (2, 3))),
            "allowed_token_ids",
            "leaves no token to draw",
        ),
        (LogitRules(bad_words=tuple((token,) for token in range(VOCAB))), "bad_words", "leaves no token to draw"),
    ],
)
def test_the_first_fault_is_named(rules: LogitRules, field: str, words: str) -> None:
    fault = rules_fault(rules, (), VOCAB)
    assert fault is not None and fault[0] == field and fault[1].startswith(words)


def test_what_ends_a_choice_counts_while_it_may_not_end() -> None:
    assert rules_fault(LogitRules(allowed_token_ids=(2, 3)), (2,), VOCAB) is None
    fault = rules_fault(LogitRules(allowed_token_ids=(2, 3), bad_words=((4, 3),)), (2,), VOCAB)
    assert fault is not None and fault[0] == "allowed_token_ids"


@pytest.mark.parametrize(
    "rules", [NO_RULES, LogitRules(2.0, -2.0, 2.0, ((0, -100.0), (9, 100.0)), (0, 9), ((9, 0, 1),))]
)
def test_the_edges_are_fine(rules: LogitRules) -> None:
    assert rules_fault(rules, (), VOCAB) is None


def test_rules_without_a_fault_leave_a_token_after_any_outputs() -> None:
    rng = random.Random(29)
    num_fine = 0
    for _ in range(300):
        rules = random_rules(rng, VOCAB)
        outputs = rng.choices(rules.allowed_token_ids or range(VOCAB), k=rng.randint(0, 6))
        if rules_fault(rules, (), VOCAB) is None:
            num_fine += 1
            assert max(ruled([0.0] * VOCAB, [1], outputs, rules)) > float("-inf")
    assert num_fine > 100
