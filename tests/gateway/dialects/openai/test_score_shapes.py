"""Log-probabilities on their way to a client."""

import random

from gateway.dialects.openai.score_shapes import LogprobWriter
from gateway.serving.gathered import PackedTokens
from gateway.text.choice_text import ByteDetokenizer, ChoiceText, TokenBytes
from gateway.text.stop_strings import StopSet
from gateway.words.pieces import Piece, ScoredToken
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import EOS, byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


def scores(count: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(-float(place), 1, ()) for place in range(count))


def new_text(*stops: str) -> ChoiceText:
    return ChoiceText(ByteDetokenizer(TOKEN_BYTES, ()), StopSet(stops), 0)


def told(piece: Piece) -> list[tuple[int, int]]:
    return [(each.token_id, each.offset) for each in piece.logprobs]


def test_a_token_leaves_with_the_chunk_that_has_its_text() -> None:
    text = new_text("bcx")
    assert told(text.feed(tuple(b"ab"), None, scores(2))) == [(97, 0)]
    assert told(text.feed((99,), None, scores(1))) == []
    piece = text.feed((100,), None, scores(1))
    assert piece.text == "bcd" and told(piece) == [(98, 1), (99, 2), (100, 3)]


def test_parts_of_a_character_leave_together() -> None:
    text = new_text()
    assert told(text.feed((0xC3,), None, scores(1))) == []
    piece = text.feed((0xA9,), None, scores(1))
    assert piece.text == "é" and told(piece) == [(0xC3, 0), (0xA9, 0)]


def test_tokens_in_a_stop_string_are_cut() -> None:
    text = new_text("éb")
    assert told(text.feed((97, 0xC3), None, scores(2))) == [(97, 0)]
    piece = text.feed((0xA9, 98, 99), None, scores(3))
    assert piece.finish_reason == "stop" and told(piece) == [], "neither the parts of é nor b"


def test_all_that_is_left_leaves_at_the_end() -> None:
    text = new_text("bcd")
    assert told(text.feed((97, 98, EOS), FinishReason.STOP, scores(3))) == [(97, 0), (98, 1), (EOS, 2)]


def test_pieces_do_not_change_what_is_told() -> None:
    rng = random.Random(5)
    for _ in range(100):
        ids = tuple(rng.choice([97, 98, 99, 0xC3, 0xA9, 256]) for _ in range(12))
        whole = new_text("ab", "cca").feed(ids, FinishReason.LENGTH, scores(12))
        text, found = new_text("ab", "cca"), list[ScoredToken]()
        start = 0
        while start < 12 and text.finish_reason is None:
            end = min(12, start + rng.choice((1, 1, 2, 3)))
            finish = FinishReason.LENGTH if end == 12 else None
            found += text.feed(ids[start:end], finish, scores(12)[start:end]).logprobs
            start = end
        assert found == list(whole.logprobs)


def test_shapes_of_openai() -> None:
    tokens = [
        ScoredToken(97, 0, TokenLogprob(-0.5, 1, ((97, -0.5), (0xC3, float("-inf"))))),
        ScoredToken(98, 1, TokenLogprob(-3.0, 7, ((97, -0.25),))),
    ]
    writer = LogprobWriter(False, TOKEN_BYTES.__getitem__)
    assert writer.write(tokens) == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"a": -0.5, "bytes:\\xc3": -9999.0}, {"a": -0.25, "b": -3.0}],
        "text_offset": [0, 1],
    }
    chat = LogprobWriter(True, TOKEN_BYTES.__getitem__).write(tokens)
    part = {"token": "bytes:\\xc3", "logprob": -9999.0, "bytes": [0xC3]}
    assert chat["content"][0]["top_logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [97]}, part]
    assert chat["content"][1]["token"] == "b" and len(chat["content"]) == 2 and chat["refusal"] is None
    assert LogprobWriter(False, TOKEN_BYTES.__getitem__, as_ids=True).write(tokens)["tokens"] == [
        "token_id:97",
        "token_id:98",
    ]


def test_packed_tokens_are_what_was_added() -> None:
    rng = random.Random(6)
    for _ in range(50):
        tokens, packed = list[ScoredToken](), PackedTokens()
        for place in range(rng.randrange(40)):
            num_top = rng.choice((2, 2, 2, 0, 5))  # a worker of a small vocabulary may send fewer
            top = tuple((rng.randrange(2**31), -rng.randrange(99) / 4) for _ in range(num_top))
            value = rng.choice((0.0, -0.25, float("-inf")))
            tokens.append(ScoredToken(rng.randrange(2**31), place * 2**33, TokenLogprob(value, rng.randint(1, 9), top)))
            packed.add(tokens[-1])
        assert list(packed) == tokens == list(packed) and len(packed) == len(tokens)
        assert packed.num_bytes == sum(12 + 8 + 8 * len(each.scored.top) for each in tokens if each.scored is not None)
        assert all(each in packed for each in tokens)
