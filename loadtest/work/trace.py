"""The Mooncake trace: read from a file, or made from a seed; and its prompts. Pure.

The form (FAST25-release/traces of github.com/kvcache-ai/Mooncake): a line for each request with `timestamp` in ms,
`input_length`, `output_length` and `hash_ids`, an id for each block of 512 prompt tokens. Equal ids mean equal tokens
up to the end of the block. A made trace has an eighth of all lengths, so its blocks have 64 tokens; a trace from a file
is scaled in the same way until its longest request fits the model.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from typing import Any

from loadtest.work.arrivals import Replay
from loadtest.work.conversations import Conversation, Turn
from loadtest.work.datasets import parsed_lines, wrong
from protocol.errors import ConfigError

FILE_BLOCK_TOKENS = 512  # of a block in a file
BLOCK_TOKENS = 64  # of a block in a made trace
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
    hash_ids: tuple[int | str, ...]


def trace(seed: int, num_requests: int, duration_s: float) -> list[TraceRequest]:
    """Sessions of several turns that share system prompts, and some singles, in order of arrival.

    The last session may add a few requests to `num_requests`.
    """
    rng = random.Random(f"trace {seed}")
    ids = count()
    systems = [tuple(next(ids) for _ in range(num_blocks)) for num_blocks in SYSTEMS]
    requests: list[TraceRequest] = []
    while len(requests) < num_requests:
        system: tuple[int, ...] = ()
        num_turns = 1
        if rng.random() > SINGLES:
            [system] = rng.choices(systems, weights=(4, 2, 1))
            num_turns = min(8, 1 + int(rng.expovariate(1 / 2.5)))
        session = _session(rng, ids, system, rng.uniform(0, duration_s), num_turns)
        requests += [request for request in session if request.timestamp < duration_s * 1e3]
    return sorted(requests, key=lambda request: request.timestamp)


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


@dataclass(frozen=True)
class TraceWork:
    """A trace as work: each request once, in order."""

    requests: Sequence[TraceRequest]
    block_tokens: int
    vocab: int

    @classmethod
    def read(cls, path: str, vocab: int, context: int | None) -> "TraceWork":
        """Reads a file in the Mooncake format. `context`: the longest prompt with its answer, in tokens."""
        requests = [_request(where, entry) for where, entry in parsed_lines(path)]
        if any(later.timestamp < earlier.timestamp for earlier, later in pairwise(requests)):
            requests.sort(key=lambda request: request.timestamp)
        scaled, block_tokens = scale_to(requests, context)
        return cls(scaled, block_tokens, vocab)

    def arrivals(self, time_scale: float) -> Replay:
        """When its requests are sent."""
        return Replay([request.timestamp / 1e3 for request in self.requests], time_scale)

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """Ends with the trace."""
        for request in self.requests:
            said = tuple(prompt_of(request, seed, self.vocab, self.block_tokens))
            yield Conversation((Turn(said, request.output_length),))

    def words(self) -> str:
        """The work in one line."""
        return f"a trace of {len(self.requests):,} requests, blocks of {self.block_tokens} tokens"


def _request(where: str, entry: Any) -> TraceRequest:
    """One line of a file. ConfigError says what is wrong with it."""
    if not isinstance(entry, dict):
        raise wrong(where, entry, "a JSON object")
    for name, least in (("timestamp", 0), ("input_length", 1), ("output_length", 1)):
        value = entry.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise wrong(where, f"{name} = {value}", f"a number of at least {least}")

    length, ids = int(entry["input_length"]), entry.get("hash_ids")
    num_blocks = -(-length // FILE_BLOCK_TOKENS)
    if not isinstance(ids, list) or len(ids) != num_blocks:
        got = f"{len(ids)} hash_ids" if isinstance(ids, list) else f"hash_ids = {ids}"
        raise wrong(where, got, f"{num_blocks} for {length} tokens in blocks of {FILE_BLOCK_TOKENS}")
    if not all(isinstance(block, int | str) for block in ids):
        raise wrong(where, f"hash_ids = {ids}", "integers or strings")
    return TraceRequest(round(entry["timestamp"]), length, int(entry["output_length"]), tuple(ids))


def scale_to(requests: Sequence[TraceRequest], context: int | None) -> tuple[list[TraceRequest], int]:
    """All lengths divided alike, until prompt and answer of each fit in `context`; and the tokens of a block then."""
    for block_tokens in range(FILE_BLOCK_TOKENS, 0, -1):
        scaled = [_scaled(request, block_tokens) for request in requests]
        if context is None or max(request.input_length + request.output_length for request in scaled) <= context:
            return scaled, block_tokens
    longest = max(len(request.hash_ids) for request in requests)
    raise ConfigError(
        f"--max-model-len: got {context}, expected at least {longest + 1} for a prompt of {longest} blocks",
        param="max-model-len",
    )


def _scaled(request: TraceRequest, block_tokens: int) -> TraceRequest:
    whole, rest = divmod(request.input_length, FILE_BLOCK_TOKENS)
    length = whole * block_tokens + -(-rest * block_tokens // FILE_BLOCK_TOKENS)
    num_outputs = max(1, request.output_length * block_tokens // FILE_BLOCK_TOKENS)
    return TraceRequest(request.timestamp, length, num_outputs, request.hash_ids)


def prompt_of(request: TraceRequest, seed: int, vocab_size: int, block_tokens: int = BLOCK_TOKENS) -> list[int]:
    """Random tokens: the same for the same id and seed."""
    tokens = [token for hash_id in request.hash_ids for token in _block(hash_id, seed, vocab_size, block_tokens)]
    return tokens[: request.input_length]


@lru_cache(4096)  # as many as a block is likely to come again in
def _block(hash_id: int | str, seed: int, vocab_size: int, block_tokens: int) -> tuple[int, ...]:
    rng = random.Random(f"block {seed} {hash_id}")
    return tuple(rng.choices(range(3, vocab_size), k=block_tokens))
