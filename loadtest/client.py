"""Times one streaming completion: when each chunk arrived, how many tokens it had, or what went wrong.

Prompts are token ids, so that any tokenizer (or none) will do. Only chunks without choices are parsed as JSON; of the
others only the arrival counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from loadtest.http_exchange import TIMEOUT_S, Broken, Server, exchange, get
from protocol.errors import ConfigError
from runtime.clock import Clock

_TOKENS = (b'"choices":[{', b'"choices": [{')


@dataclass(frozen=True)
class Timing:
    """What one client saw, in seconds. `error` is empty if the answer ended properly."""

    ttft_s: float = 0.0
    itl_s: tuple[float, ...] = ()
    e2e_s: float = 0.0
    num_tokens: int = 0
    error: str = ""


def completion_body(model: str, prompt: Sequence[int], max_tokens: int) -> bytes:
    """A greedy completion of exactly `max_tokens` tokens, streamed, with usage at the end."""
    return orjson.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def model_name(server: Server, clock: Clock) -> str:
    """The first model in the server's list. ConfigError if there is none."""
    try:
        status, body = await get(server, clock, "/v1/models")
    except Broken as error:
        raise ConfigError(f"nothing answers at {server.host}:{server.port}: {error}") from error
    if status != 200:
        raise ConfigError(f"GET /v1/models: {refusal(status, body)}")
    try:
        return str(orjson.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"GET /v1/models: got {body[:200]!r}, expected a list of models") from error


def refusal(status: int, body: bytes) -> str:
    """`HTTP 401: ` and the server's message, or the start of the body; for 401 and 403 a hint about the key."""
    try:
        message = str(orjson.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = body.decode(errors="replace")
    hint = "; --api-key-file FILE names a file with the key" if status in (401, 403) else ""
    return f"HTTP {status}: {message[:200]}{hint}"


async def stream_one(
    server: Server, clock: Clock, body: bytes, since: float | None = None, timeout_s: float = TIMEOUT_S
) -> Timing:
    """Runs one request to its end. Network and HTTP errors become part of the result. Times count from `since` (default
    now)."""
    start = clock.now() if since is None else since
    heard = _Heard()

    try:
        status = await exchange(server, clock, "POST", "/v1/completions", body, heard.line, timeout_s)
    except Broken as failure:
        return Timing(error=str(failure))

    if status != 200:
        return Timing(error=refusal(status, b" ".join(heard.others)))
    if heard.error or not heard.done or not heard.arrivals:
        return Timing(error=heard.error or "the stream ended without [DONE]")

    arrivals = heard.arrivals
    gaps = tuple(later - earlier for earlier, later in pairwise(arrivals))
    return Timing(arrivals[0] - start, gaps, arrivals[-1] - start, heard.num_tokens or len(arrivals))


@dataclass
class _Heard:
    """The lines of one answer so far. `num_tokens` is 0 until usage arrives."""

    arrivals: list[float] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)  # lines that are no events, such as the body of an error
    num_tokens: int = 0
    error: str = ""
    done: bool = False

    def line(self, now: float, line: bytes) -> bool:
        if not line.startswith(b"data:"):
            if line.strip() and not line.startswith(b":"):
                self.others.append(line)
        elif _TOKENS[0] in line or _TOKENS[1] in line:
            self.arrivals.append(now)
        elif line[5:].strip() == b"[DONE]":
            self.done = True
        else:
            self._without_choices(line[5:])
        return not self.done

    def _without_choices(self, text: bytes) -> None:
        try:
            event: Any = orjson.loads(text)
        except orjson.JSONDecodeError:
            self.error = f"not JSON: {text[:200]!r}"
            return
        if not isinstance(event, dict):
            self.error = f"not an event: {text[:200]!r}"
        elif failure := event.get("error"):
            self.error = str(failure.get("message") if isinstance(failure, dict) else failure)[:200]
        elif usage := event.get("usage"):
            self.num_tokens = int(usage["completion_tokens"])
