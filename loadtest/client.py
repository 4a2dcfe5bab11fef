"""One streaming completion, timed: when each chunk came, how many tokens, or what went wrong.

Prompts are token ids, so that any tokenizer (or none) will do. What it does not know: how many run at once.
"""

import json
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from runtime.clock import Clock


@dataclass(frozen=True)
class Timing:
    """What one client saw; times in seconds. `error` is empty for an answer that ended as it should."""

    ttft_s: float = 0.0
    itl_s: tuple[float, ...] = ()
    e2e_s: float = 0.0
    num_tokens: int = 0
    error: str = ""


async def stream_one(
    session: aiohttp.ClientSession, clock: Clock, url: str, model: str, prompt: list[int], max_tokens: int
) -> Timing:
    """Runs one request to its end. Network and HTTP errors are part of the result."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = clock.now()
    arrivals: list[float] = []
    num_tokens, error, done = 0, "", False
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                return Timing(error=f"HTTP {response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    done = True
                    break
                event = json.loads(line[6:])
                if "error" in event:
                    error = str(event["error"].get("message"))[:200]
                if event.get("choices"):
                    arrivals.append(clock.now())
                if event.get("usage"):
                    num_tokens = event["usage"]["completion_tokens"]
    except (aiohttp.ClientError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    if error or not done or not arrivals:
        return Timing(error=error or "the stream ended without [DONE]")
    gaps = tuple(later - earlier for earlier, later in pairwise(arrivals))
    return Timing(arrivals[0] - start, gaps, arrivals[-1] - start, num_tokens)
