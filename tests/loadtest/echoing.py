"""A stand-in for an endpoint that says everything of itself: token ids, usage, and what it counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from loadtest.http_exchange import Server
from tests.loadtest.openai_stand_in import StandIn, standing_in

PIECES_BESIDE_TOKENS = 2


def with_ids(body: dict[str, Any]) -> list[bytes | None]:
    """A comment while the prompt is computed, so that the first token comes a pause later; then a token each pause."""
    token = b'data: {"choices": [{"index": 0, "text": " word", "token_ids": [17]}]}\n\n'
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\ndata: [DONE]\n\n'
    num_tokens = int(body["max_tokens"])
    return [b": waiting\n\n", *[token] * num_tokens, usage % (len(body["prompt"]), num_tokens)]


@asynccontextmanager
async def echoing() -> AsyncIterator[Server]:
    """Where it answers."""
    async with standing_in(StandIn(with_ids, pause_s=0.005, has_metrics=True)) as server:
        yield server
