"""What a server can be asked: every field may be refused, and a server may tell texts only."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from loadtest.verify.answers import Ask
from loadtest.verify.probe import OPTIONAL, probe
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.loadtest.verify.hash_server import answer, hashing

Answering = Callable[[dict[str, Any]], Any]


def refusing(*fields: str) -> Answering:
    """A server that knows nothing of these fields."""

    def change(body: dict[str, Any]) -> Any:
        if unknown := [name for name in fields if name in body]:
            return [json.dumps({"error": {"message": f"unknown field {unknown[0]}"}}).encode()]
        return answer(body)

    return change


def texts_only(body: dict[str, Any]) -> Any:
    told = json.loads(answer({**body, "stream": False})[0])
    for choice in told["choices"]:
        del choice["token_ids"], choice["logprobs"]
    return [json.dumps(told).encode()]


async def test_a_server_that_knows_everything() -> None:
    async with hashing() as server:
        dialect = await probe(server, MonotonicClock(), None)
    assert (dialect.model, dialect.way, dialect.refused) == ("stand-in", "prompt_logprobs", frozenset())
    assert dialect.has_ids and dialect.has_logprobs and dialect.has_salt
    body = json.loads(dialect.body(Ask((5, 6), 3, seed=9), True, "mine"))
    assert body["cache_salt"] == "mine" and body["seed"] == 9 and body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("field", OPTIONAL)
async def test_a_field_that_is_refused_is_never_sent(field: str) -> None:
    async with hashing(refusing(field)) as server:
        dialect = await probe(server, MonotonicClock(), None)
    assert dialect.refused == {field}
    assert field not in json.loads(dialect.body(Ask((5, 6), 3), False, "mine"))


async def test_a_server_that_scores_no_prompt() -> None:
    async with hashing(refusing("prompt_logprobs", "echo")) as server:
        assert (await probe(server, MonotonicClock(), None)).way == ""


async def test_a_server_of_texts() -> None:
    async with hashing(texts_only) as server:
        dialect = await probe(server, MonotonicClock(), None)
    assert not dialect.has_ids and not dialect.has_logprobs and dialect.way == ""


async def test_a_server_that_takes_no_ids_is_told() -> None:
    async with hashing(refusing("prompt")) as server:
        with pytest.raises(ConfigError, match=r"token ids as its prompt failed: .*unknown field prompt"):
            await probe(server, MonotonicClock(), None)
