"""Log-probabilities in answers: which chunk tells of a token, how they are written, and that each comes once."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.choice_text import ByteDetokenizer, ChoiceText, Piece, StopSet, TokenBytes
from gateway.logprobs import LEAST, LogprobWriter, ScoredToken
from protocol.logprobs import TokenLogprob
from protocol.messages_gateway import FinishReason
from tests.doubles.fake_worker import Behaviour, made_up
from tests.gateway.conftest import Setting, chunks_of, running
from tests.gateway.folders import EOS, byte_tokenizer, write_folder

TEXT = "Grüße 🙂 one two"
IDS = list(TEXT.encode())


def bytes_of(token: int) -> bytes | None:
    return bytes([token]) if token < 256 else None


def scored(token: int, offset: int = 0) -> ScoredToken:
    return ScoredToken(token, offset, made_up(token, 2))


# ---- which chunk ----


class Told:
    """One choice that is fed token by token."""

    def __init__(self, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        detokenizer = ByteDetokenizer(TokenBytes(byte_tokenizer(), frozenset()), ())
        self.text = ChoiceText(detokenizer, StopSet(list(stops)), min_tokens)
        self.pieces: list[Piece] = []

    def feed(self, ids: Sequence[int], finish: FinishReason | None = None) -> Piece:
        self.pieces.append(self.text.feed(tuple(ids), finish, tuple(made_up(token, 1) for token in ids)))
        return self.pieces[-1]

    @property
    def told(self) -> list[int]:
        return [each.token_id for piece in self.pieces for each in piece.logprobs]

    @property
    def shown(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def test_a_token_is_told_with_the_end_of_its_text() -> None:
    choice = Told()
    assert [each.token_id for each in choice.feed(b"a").logprobs] == [97]
    first, *others = "ü".encode()
    assert choice.feed([first]).logprobs == (), "its character is not whole"
    assert [each.token_id for each in choice.feed(others).logprobs] == [first, *others]
    assert [each.offset for piece in choice.pieces for each in piece.logprobs] == [0, 1, 1]


def test_each_token_is_told_once_whatever_is_held_back() -> None:
    for size in (1, 2, 3, 7):
        choice = Told(["two three"])
        for start in range(0, len(IDS), size):
            piece = choice.feed(IDS[start : start + size])
            told = choice.told
            assert told == IDS[: len(told)]
            assert len(bytes(told).decode(errors="ignore")) <= len(choice.shown), piece
        choice.feed([EOS - EOS % 256], FinishReason.LENGTH)
        assert choice.told[: len(IDS)] == IDS and len(choice.told) == len(IDS) + 1


def test_a_stop_string_cuts_the_tokens_that_begin_in_it() -> None:
    choice = Told(["one"])
    choice.feed(IDS)
    assert choice.shown == TEXT[: TEXT.index("one")]
    assert choice.told == list(choice.shown.encode())
    assert choice.text.stop_string == "one"


# ---- how they are written ----


def test_as_a_completion() -> None:
    writer = LogprobWriter(False, bytes_of)
    found = writer.write([scored(97), scored(200, 1)])
    assert found["tokens"] == ["a", "bytes:\\xc8"]
    assert found["token_logprobs"] == [made_up(97, 0).logprob, made_up(200, 0).logprob]
    assert found["text_offset"] == [0, 1]
    assert found["top_logprobs"][0] == {"a": -33 / 64, "b": -34 / 64}


def test_as_a_chat() -> None:
    [entry] = LogprobWriter(True, bytes_of).write([scored(97)])["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -33 / 64, [97])
    assert entry["top_logprobs"] == [
        {"token": "a", "logprob": -33 / 64, "bytes": [97]},
        {"token": "b", "logprob": -34 / 64, "bytes": [98]},
    ]


def test_as_ids_and_without_text() -> None:
    assert LogprobWriter(False, bytes_of, as_ids=True).write([scored(97)])["tokens"] == ["token_id:97"]
    assert LogprobWriter(False, lambda _: None).write([scored(97)])["tokens"] == ["token_id:97"]
    [entry] = LogprobWriter(True, lambda _: None).write([scored(97)])["content"]
    assert entry["bytes"] is None


def test_minus_infinity_is_the_field_s_number() -> None:
    never = ScoredToken(97, 0, TokenLogprob(float("-inf"), 9, ((98, float("-inf")),)))
    found = LogprobWriter(False, bytes_of).write([never])
    assert found["token_logprobs"] == [LEAST] and found["top_logprobs"] == [{"b": LEAST, "a": LEAST}]
    json.dumps(found, allow_nan=False)


# ---- over HTTP ----


def spelling(**options: Any) -> Behaviour:
    return Behaviour(script=lambda assign, choice: [*IDS, EOS], **options)


@pytest.fixture(
    params=[
        spelling(),
        spelling(burst=3, twice=True),
        spelling(reverse=True),
        spelling(first_token_late=True, burst=2),
    ],
    ids=["plain", "twice", "reverse", "first-late"],
)
async def setting(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Setting]:
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as found:
        await found.add_pair(request.param)
        yield found


@pytest.mark.parametrize("stop", [None, "one"])
async def test_completions(setting: Setting, stop: str | None) -> None:
    body = {"prompt": [1, 2], "max_tokens": 60, "logprobs": 2, "stop": stop, "n": 2}
    whole = (await setting.client.post("/v1/completions", json=body)).json()["choices"]
    for choice in whole:
        told = choice["logprobs"]
        text = TEXT if stop is None else TEXT[: TEXT.index(stop)]
        ids = list(text.encode()) + ([EOS] if stop is None else [])
        assert choice["text"] == text
        assert told["token_logprobs"] == [made_up(token, 0).logprob for token in ids]
        assert told["text_offset"][: len(text.encode())] == [
            next(at for at in range(len(text)) if len(text[: at + 1].encode()) > place)
            for place in range(len(text.encode()))
        ]
        assert all(len(each) in (2, 3) for each in told["top_logprobs"])

    streamed = await setting.client.post("/v1/completions", json={**body, "stream": True})
    joined: dict[int, dict[str, list[Any]]] = {}
    for chunk in chunks_of(streamed.text):
        [choice] = chunk["choices"]
        for name, values in (choice["logprobs"] or {}).items():
            joined.setdefault(choice["index"], {}).setdefault(name, []).extend(values)
    assert [joined[index] for index in range(2)] == [choice["logprobs"] for choice in whole]


async def test_chats(setting: Setting) -> None:
    messages = [{"role": "user", "content": "a"}]
    body = {"messages": messages, "max_tokens": 60, "logprobs": True, "top_logprobs": 1}
    [choice] = (await setting.client.post("/v1/chat/completions", json=body)).json()["choices"]
    content = choice["logprobs"]["content"]
    assert bytes(byte for entry in content[:-1] for byte in entry["bytes"]).decode() == TEXT
    assert [entry["logprob"] for entry in content] == [made_up(token, 0).logprob for token in [*IDS, EOS]]
    assert all(len(entry["top_logprobs"]) == 1 for entry in content)

    streamed = await setting.client.post("/v1/chat/completions", json={**body, "stream": True})
    chunks = [chunk["choices"][0] for chunk in chunks_of(streamed.text)]
    assert [entry for each in chunks if each["logprobs"] for entry in each["logprobs"]["content"]] == content


async def test_none_are_told_to_a_client_that_does_not_ask(setting: Setting) -> None:
    [choice] = (await setting.complete([1, 2], max_tokens=60)).json()["choices"]
    assert choice["logprobs"] is None


async def test_sglang_s_shape(setting: Setting) -> None:
    body = {"input_ids": [[1], [2]], "return_logprob": [True, False], "top_logprobs_num": 2, "sampling_params": {}}
    asks, other = (await setting.client.post("/generate", json={**body, "return_text_in_logprobs": True})).json()
    meta = asks["meta_info"]
    assert [each[:2] for each in meta["output_token_logprobs"]] == [
        [made_up(token, 0).logprob, token] for token in [*IDS, EOS]
    ]
    assert meta["output_token_logprobs"][0][2] == "G"
    assert [len(each) for each in meta["output_top_logprobs"]] == [2] * (len(IDS) + 1)
    assert meta["input_token_logprobs"] == []
    assert "output_token_logprobs" not in other["meta_info"]
