"""Seeded requests in the form of the Mooncake trace, and the hit rate that no cache can exceed on them. Pure.

The form (FAST25-release/traces of github.com/kvcache-ai/Mooncake): a line for each request with `timestamp` in ms,
`input_length`, `output_length` and `hash_ids`, an id for each block of 512 prompt tokens. Equal ids mean equal tokens
up to the end of the block. Here all lengths are an eighth of the trace's, to fit the model, and a block has 64 tokens.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

BLOCK_TOKENS = 64
LONGEST = 3500  # tokens of a prompt
SYSTEMS = (2, 8, 16)  # blocks of the shared system prompts, the most frequent first
SINGLES = 0.35  # share of requests that come once
TURN_GAP_S = 5.0  # between the turns of a session, on average


@dataclass(frozen=True)
class TraceRequest:
    """One line of the trace."""

    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def trace(seed: int, num_requests: int, duration_s: float) -> list[TraceRequest]:
    """Sessions of several turns that share system prompts, and some singles, in order of arrival.

    The last session may add a few requests to `num_requests`.
    """
    rng = random.Random(f"trace {seed}")
    ids = count()
    systems = [tuple(next(ids) for _ in range(num_blocks)) for num_blocks in SYSTEMS]
    found: list[TraceRequest] = []
    while len(found) < num_requests:
        system: tuple[int, ...] = ()
        num_turns = 1
        if rng.random() > SINGLES:
            [system] = rng.choices(systems, weights=(4, 2, 1))
            num_turns = min(8, 1 + int(rng.expovariate(1 / 2.5)))
        session = _session(rng, ids, system, rng.uniform(0, duration_s), num_turns)
        found += [request for request in session if request.timestamp < duration_s * 1e3]
    return sorted(found, key=lambda request: request.timestamp)


def _session(
    rng: random.Random, ids: "count[int]", system: tuple[int, ...], start_s: float, num_turns: int
) -> Iterator[TraceRequest]:
    """Each turn repeats the blocks that are full, and adds what was answered and asked since."""
    blocks, at_s = system, start_s
    length = len(system) * BLOCK_TOKENS
    for _ in range(num_turns):
        length += int(min(1800, rng.lognormvariate(5.3, 0.9))) + 8
        if length > LONGEST:
            return
        blocks += tuple(next(ids) for _ in range(length // BLOCK_TOKENS - len(blocks)))
        partial = (next(ids),) if length % BLOCK_TOKENS else ()
        num_outputs = max(2, min(64, int(rng.lognormvariate(2.8, 0.7))))
        yield TraceRequest(int(at_s * 1e3), length, num_outputs, blocks + partial)
        length += num_outputs
        at_s += 1.0 + rng.expovariate(1 / TURN_GAP_S)


def prompt_of(request: TraceRequest, seed: int, vocab_size: int) -> list[int]:
    """Random tokens: the same for the same id and seed."""
    tokens = [token for hash_id in request.hash_ids for token in _block(hash_id, seed, vocab_size)]
    return tokens[: request.input_length]


@cache
def _block(hash_id: int, seed: int, vocab_size: int) -> tuple[int, ...]:
    rng = random.Random(f"block {seed} {hash_id}")
    return tuple(rng.choices(range(3, vocab_size), k=BLOCK_TOKENS))


def unlimited_hits(requests: Sequence[TraceRequest], page_size: int) -> int:
    """Prompt tokens in the cache if it forgets nothing and each request ends before the next. One token is computed.

    A page belongs to one block.
    """
    assert BLOCK_TOKENS % page_size == 0, "pages do not cross blocks"
    known: set[int] = set()
    hits = 0
    for request in requests:
        num_known = 0
        while num_known < len(request.hash_ids) and request.hash_ids[num_known] in known:
            num_known += 1
        most = min(num_known * BLOCK_TOKENS, request.input_length - 1)
        hits += most - most % page_size
        known.update(request.hash_ids)
    return hits
