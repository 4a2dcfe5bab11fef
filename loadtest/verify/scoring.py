"""Oracles that score an answer: its tokens go back alone, behind its prompt, as one prompt.

The server itself does it (`prompt_logprobs` of vLLM and Baton, `echo` of OpenAI), or transformers (folder.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson

from loadtest.http_exchange import Broken, Server, ask
from loadtest.verify.asking import COMPLETIONS
from loadtest.verify.judge import Place
from runtime.clock import Clock

WAYS: Mapping[str, Mapping[str, Any]] = {
    "prompt_logprobs": {"prompt_logprobs": 1},
    "echo": {"echo": True, "logprobs": 1, "return_tokens_as_token_ids": True},
}


class Scorer(Protocol):
    """Scores answers. `name`: the oracle's."""

    name: str

    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Place] | None:
        """What it says of each token behind the prompt. None if it did not answer."""
        ...


class ServerScorer:
    """The server that is verified. `fields`: those of each request, such as the model's name."""

    name = "rescore"

    def __init__(self, server: Server, clock: Clock, way: str, fields: Mapping[str, Any], timeout_s: float) -> None:
        self._server, self._clock, self._way = server, clock, way
        self._fields, self._timeout_s = fields, timeout_s

    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Place] | None:
        """What it says of each token behind the prompt. None if it did not answer."""
        asked = {**self._fields, "prompt": [*prompt, *tokens], "max_tokens": 1, "temperature": 0, **WAYS[self._way]}
        try:
            body = orjson.dumps(asked)
            status, told = await ask(self._server, self._clock, "POST", COMPLETIONS, body, self._timeout_s)
        except Broken:
            return None
        return places_of(self._way, told, len(prompt), tokens) if status == 200 else None


def places_of(way: str, told: bytes, start: int, tokens: Sequence[int]) -> list[Place] | None:
    """Reads what a server told of `tokens`, which begin at `start` of the prompt. None if it told nothing of use."""
    try:
        choice = orjson.loads(told)["choices"][0]
        if way == "prompt_logprobs":
            entries = choice[way][start : start + len(tokens)]
            lists = [{int(token): entry["logprob"] for token, entry in known.items()} for known in entries]
            places = [(others[token], others) for token, others in zip(tokens, lists, strict=True)]
        else:
            told_places = choice["logprobs"]
            values = told_places["token_logprobs"][start : start + len(tokens)]
            lists = told_places["top_logprobs"][start : start + len(tokens)]
            places = list(zip(values, lists, strict=True))
        return [Place(float(value), max(map(float, (value, *others.values())))) for value, others in places]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
