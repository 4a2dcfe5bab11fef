"""Which tokens leave with which Step."""

import random

from gateway.text.detokenizer import ByteDetokenizer, TokenBytes
from gateway.text.pipeline import Pipeline
from gateway.text.stop_strings import StopSet
from gateway.words.events import Finish, Reason, Step
from gateway.words.scored import ScoredToken
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import EOS, byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


def scores(count: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(-float(place), 1, ()) for place in range(count))


def new_text(*stops: str) -> Pipeline:
    return Pipeline(ByteDetokenizer(TOKEN_BYTES, ()), StopSet(stops), 0)


def told(step: Step) -> list[tuple[int, int]]:
    return [(each.token_id, each.offset) for each in step.shown]


def test_a_token_leaves_with_the_chunk_that_has_its_text() -> None:
    text = new_text("bcx")
    assert told(text.feed(tuple(b"ab"), None, scores(2))) == [(97, 0)]
    assert told(text.feed((99,), None, scores(1))) == []
    step = text.feed((100,), None, scores(1))
    assert step.text == "bcd" and told(step) == [(98, 1), (99, 2), (100, 3)]


def test_parts_of_a_character_leave_together() -> None:
    text = new_text()
    assert told(text.feed((0xC3,), None, scores(1))) == []
    step = text.feed((0xA9,), None, scores(1))
    assert step.text == "é" and told(step) == [(0xC3, 0), (0xA9, 0)]


def test_tokens_in_a_stop_string_are_cut() -> None:
    text = new_text("éb")
    assert told(text.feed((97, 0xC3), None, scores(2))) == [(97, 0)]
    step = text.feed((0xA9, 98, 99), None, scores(3))
    assert step.finish == Finish(Reason.STOP, "éb") and told(step) == [], "neither the parts of é nor b"


def test_all_that_is_left_leaves_at_the_end() -> None:
    text = new_text("bcd")
    assert told(text.feed((97, 98, EOS), FinishReason.STOP, scores(3))) == [(97, 0), (98, 1), (EOS, 2)]


def test_deliveries_do_not_change_what_is_told() -> None:
    rng = random.Random(5)
    for _ in range(100):
        ids = tuple(rng.choice([97, 98, 99, 0xC3, 0xA9, 256]) for _ in range(12))
        whole = new_text("ab", "cca").feed(ids, FinishReason.LENGTH, scores(12))
        text, found = new_text("ab", "cca"), list[ScoredToken]()
        start = 0
        while start < 12 and text.finish is None:
            end = min(12, start + rng.choice((1, 1, 2, 3)))
            finish = FinishReason.LENGTH if end == 12 else None
            found += text.feed(ids[start:end], finish, scores(12)[start:end]).shown
            start = end
        assert found == list(whole.shown)
