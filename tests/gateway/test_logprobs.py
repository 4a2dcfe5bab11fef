"""Log-probabilities on their way to a client."""

import random
from typing import Any

import pytest

from gateway.choice_text import ByteDetokenizer, ChoiceText, Piece, TokenBytes
from gateway.logprobs import LogprobWriter, PackedTokens, ScoredToken
from gateway.stop_strings import StopSet
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, chunks_of
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


@pytest.mark.parametrize("burst", [1, 4])
async def test_completions_with_logprobs(setting: Setting, burst: int) -> None:
    await setting.add_pair(Behaviour(burst=burst))
    fields: dict[str, Any] = {"max_tokens": 9, "n": 2, "logprobs": 2}
    whole = (await setting.complete("xy", **fields)).json()["choices"]
    streamed = chunks_of((await setting.complete("xy", stream=True, **fields)).text)
    for choice in whole:
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == choice["text"] and len(logprobs["token_logprobs"]) == 9
        assert all(len(top) == 2 for top in logprobs["top_logprobs"])
        parts = [each for chunk in streamed for each in chunk["choices"] if each["index"] == choice["index"]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [each for part in parts if part["logprobs"] for each in part["logprobs"][name]] == logprobs[name]


async def test_nobody_gets_them_unasked(setting: Setting) -> None:
    await setting.add_pair()
    (choice,) = (await setting.complete("xy", max_tokens=3)).json()["choices"]
    assert choice["logprobs"] is None
    (choice,) = (await setting.complete("xy", max_tokens=3, logprobs=0)).json()["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1, 1, 1], "the token itself"


async def test_chats_with_logprobs(setting: Setting) -> None:
    await setting.add_pair(Behaviour(burst=3))
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "logprobs": True, "top_logprobs": 3}
    path = "/v1/chat/completions"
    [choice] = (await setting.client.post(path, json=body)).json()["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == choice["message"]["content"] and len(content) == 7
    for each in content:
        assert bytes(each["bytes"]).decode() == each["token"] and each["logprob"] == -0.5
        assert [top["logprob"] for top in each["top_logprobs"]] == [-0.5, -1.5, -2.5]

    chunks = chunks_of((await setting.client.post(path, json=body | {"stream": True})).text)
    parts = [each["logprobs"] for chunk in chunks for each in chunk["choices"]]
    assert [each for part in parts if part for each in part["content"]] == content
    [choice] = (await setting.client.post(path, json=body | {"top_logprobs": 0})).json()["choices"]
    assert [each["top_logprobs"] for each in choice["logprobs"]["content"]] == [[]] * 7


async def test_a_stop_string_cuts_logprobs_and_text_alike(setting: Setting) -> None:
    await setting.add_pair(Behaviour(burst=1))
    [whole] = (await setting.complete("xyz", max_tokens=9, logprobs=1)).json()["choices"]
    stop = whole["text"][3:6]
    fields: dict[str, Any] = {"max_tokens": 9, "logprobs": 1, "stop": [stop]}
    [cut] = (await setting.complete("xyz", **fields)).json()["choices"]
    shown = cut["text"]
    assert shown and whole["text"].startswith(shown + stop) and cut["finish_reason"] == "stop"
    assert "".join(cut["logprobs"]["tokens"]) == shown
    chunks = chunks_of((await setting.complete("xyz", stream=True, **fields)).text)
    for part in [each for chunk in chunks for each in chunk["choices"]]:
        assert "".join(part["logprobs"]["tokens"] if part["logprobs"] else ()) == part["text"]


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
