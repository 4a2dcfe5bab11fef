"""From what is asked for to logit rules."""

from pathlib import Path
from typing import Any

import pytest

from gateway.generation.logit_rules import rules_of
from gateway.text.tokenizer import TextTokenizer, load_tokenizer
from gateway.words.request import Sampling
from protocol.errors import BadRequest
from protocol.logit_rules import LogitRules
from protocol.messages_gateway import SamplingParams
from tests.gateway.folders import byte_tokenizer, write_folder

VOCAB = 300
PARAMS = SamplingParams(8, eos_token_ids=(7,))


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    found = load_tokenizer(write_folder(tmp_path, byte_tokenizer()))
    assert found is not None
    return found


def rules(tokenizer: TextTokenizer | None, params: SamplingParams = PARAMS, **fields: Any) -> LogitRules | None:
    return rules_of(Sampling(**fields), params, tokenizer, VOCAB)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}, "bad_words": []},
        {"allowed_token_ids": None},
    ],
)
def test_what_changes_nothing_is_no_rule(fields: dict[str, Any], tokenizer: TextTokenizer) -> None:
    assert rules(tokenizer, **fields) is None


def test_every_field_becomes_a_rule(tokenizer: TextTokenizer) -> None:
    fields: dict[str, Any] = {"frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.2}
    lists: dict[str, Any] = {"logit_bias": {"5": -100, "61": 2.5}, "allowed_token_ids": [9, 5, 9], "bad_words": ["ab"]}
    spaced = (32, *b"ab")
    assert rules(tokenizer, **fields, **lists) == LogitRules(
        0.5, -1.0, 1.2, ((5, -100.0), (61, 2.5)), (9, 5), (tuple(b"ab"), spaced)
    )


def test_the_models_own_penalty_holds_unless_the_request_has_one(tokenizer: TextTokenizer) -> None:
    own = SamplingParams(8, rules=LogitRules(repetition_penalty=1.1))
    assert rules(tokenizer, own) == own.rules
    assert rules(tokenizer, own, repetition_penalty=1) is None
    assert rules(tokenizer, own, repetition_penalty=1.5) == LogitRules(repetition_penalty=1.5)


def test_bad_words_need_a_tokenizer() -> None:
    with pytest.raises(BadRequest, match=r"sampling\.bad_words: this model has no tokenizer: got text, expected none"):
        rules(None, bad_words=["a"])
