"""What a server can be asked: one short request for each optional field, and one for each way to score a prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from loadtest.drive.server import find_model
from loadtest.http_exchange import Server
from loadtest.verify.answers import Ask, Heard
from loadtest.verify.asking import hear
from loadtest.verify.scoring import WAYS, ServerScorer
from protocol.errors import ConfigError
from runtime.clock import Clock

OPTIONAL: Mapping[str, Any] = {
    "logprobs": 5,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "ignore_eos": True,
    "seed": 1,
    "n": 2,
    "cache_salt": "baton-verify-probe",
}
_OF_THE_ASK = ("ignore_eos", "seed", "n")  # each request has its own value
_PROBE = Ask((7, 11, 13, 17, 19, 23), 3)
_PROBE_S = 60.0
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class Dialect:
    """How a server is asked. `fields` are in each request; it does not know those in `refused`. `way`: how it scores a
    prompt; empty: it does not."""

    model: str
    context: int
    fields: Mapping[str, Any]
    refused: frozenset[str]
    has_ids: bool
    has_logprobs: bool
    way: str = ""

    @property
    def has_choices(self) -> bool:
        """Whether it gives several greedy choices. vLLM does not."""
        return "n" not in self.refused

    @property
    def has_salt(self) -> bool:
        """Whether requests can have a cache of their own."""
        return "cache_salt" not in self.refused

    def body(self, ask: Ask, stream: bool, salt: str) -> bytes:
        """The HTTP body of a request."""
        asked = {name: value for name, value in ask.fields().items() if name not in self.refused}
        more: dict[str, Any] = {"cache_salt": salt} if self.has_salt and salt else {}
        if stream:
            more["stream_options"] = {"include_usage": True}
        return orjson.dumps({"model": self.model, **asked, **self.fields, "stream": stream, **more})


async def probe(server: Server, clock: Clock, name: str | None) -> Dialect:
    """Asks for each optional field. ConfigError if the server cannot be asked at all."""
    endpoint = await find_model(server, clock, name)
    context = endpoint.context or DEFAULT_CONTEXT
    heard = await _asked(server, clock, endpoint.model, {})
    if not heard.done:
        what = f"HTTP {heard.status}: {heard.error}" if heard.error else heard.broken or heard.malformed
        raise ConfigError(f"a first request with token ids as its prompt failed: {what}", param="url")

    fields: dict[str, Any] = {}
    refused = set()
    for field, value in OPTIONAL.items():
        tried = await _asked(server, clock, endpoint.model, {**fields, field: value})
        if not tried.done:
            refused.add(field)
        else:
            heard, fields = tried, {**fields, field: value}
    kept = {field: value for field, value in fields.items() if field not in (*_OF_THE_ASK, "cache_salt")}

    choice = heard.answer()[0]
    has_ids = all(isinstance(token, int) for token in choice.tokens)
    dialect = Dialect(endpoint.model, context, kept, frozenset(refused), has_ids, choice.has_logprobs)
    return await _with_way(server, clock, dialect, [token for token in choice.tokens if isinstance(token, int)])


async def _with_way(server: Server, clock: Clock, dialect: Dialect, tokens: list[int]) -> Dialect:
    """The first way in which the server scores a prompt."""
    fields = {"model": dialect.model}
    for way in WAYS if dialect.has_ids else ():
        scorer = ServerScorer(server, clock, way, fields, _PROBE_S)
        if await scorer.score(_PROBE.prompt, tokens):
            return replace(dialect, way=way)
    return dialect


async def _asked(server: Server, clock: Clock, model: str, fields: Mapping[str, Any]) -> Heard:
    asked = {"prompt": _PROBE.prompt, "max_tokens": _PROBE.max_tokens, "temperature": 0}
    body = orjson.dumps({"model": model, **asked, **fields})
    return await hear(server, clock, body, stream=False, timeout_s=_PROBE_S)
