"""What is heard of an answer: ids, texts, log-probabilities, ends."""

import orjson
import pytest

from loadtest.verify.answers import Ask, Choice, Heard, as_token, shared
from tests.loadtest.verify.answering import choice, heard


def test_a_stream_and_a_whole_answer_are_one() -> None:
    said = choice([5, 6, 7])
    assert heard(said).answer() == {0: said}


@pytest.mark.parametrize(
    "told, tokens",
    [
        ({"text": "ab"}, ("a", "b")),
        ({"text": "ab", "token_ids": [5]}, (5,)),
        ({"text": "ab", "token_ids": [5], "logprobs": {"tokens": ["ab"], "token_logprobs": [-1.0]}}, (5,)),
        (
            {"text": "ab", "logprobs": {"tokens": ["ab"], "token_logprobs": [-1.0], "top_logprobs": [{"ab": -1.0}]}},
            ("ab",),
        ),
        ({"text": "ab", "logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-1.0], "top_logprobs": None}}, (5,)),
    ],
)
def test_a_token_is_an_id_or_a_text(told: dict[str, object], tokens: tuple[object, ...]) -> None:
    answer = Heard()
    answer.whole_line(orjson.dumps({"choices": [{"index": 0, "finish_reason": "stop", **told}]}))
    assert answer.answer()[0].tokens == tokens and answer.done


def test_a_client_leaves_when_it_has_enough() -> None:
    answer = Heard(leave_after=2)
    lines = [b'data: {"choices": [{"index": 0, "text": "", "token_ids": [7], "finish_reason": null}]}'] * 3
    assert [answer.stream_line(line) for line in lines[:2]] == [True, False] and answer.left


def test_the_rest_of_an_answer() -> None:
    said = choice([5, 6, 7])
    assert said.after(0) == said and said.after(1).tokens == (6, 7) and said.after(1).has_logprobs
    assert not Choice((5,)).has_logprobs


def test_a_greedy_request_asks_for_no_nucleus() -> None:
    assert "top_p" not in Ask((5,), 3).fields() and Ask((5,), 3, temperature=1.0).fields()["top_p"] == 0.95


def test_small_things() -> None:
    assert (as_token("token_id:17"), as_token(" word")) == (17, " word")
    assert (shared([1, 2, 3], [1, 2]), shared([1, 2], [1, 3]), shared([], [1])) == (2, 1, 0)
