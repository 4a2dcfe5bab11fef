"""Writes conversation.jsonl: ten minutes of conversations, with the statistics of Mooncake's conversation trace.

Published of that trace (Qin et al., Mooncake, FAST 2025): 12,031 requests in an hour, on average 12,035 prompt tokens
and 343 answered ones, and 40% of all prompt tokens could come from a cache that never forgets. Here are a fifth as many
requests in a sixth of the time, with the same means and the same share; which request follows which is made up.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "conversation.jsonl"
SEED: Final = 27
NUM_REQUESTS: Final = 400
DURATION_S: Final = 600.0
BLOCK: Final = 512  # tokens for each id
MEAN_PROMPT: Final = 12_035
MEAN_ANSWER: Final = 343
CACHED_SHARE: Final = 0.40
SYSTEM_BLOCKS: Final = 2  # that every conversation begins with
_MORE_TURNS: Final = 0.43  # how likely another turn follows
_TURN_GAP_S: Final = 45.0  # until then, on average
_FIRST: Final = (8.62, 0.95)  # of the lognormal lengths, in tokens: of what a conversation brings,
_LATER: Final = (7.3, 1.0)  # of what each further turn adds,
_ANSWER: Final = (5.49, 0.88)  # and of an answer
_LONGEST: Final = 120_000


@dataclass(frozen=True)
class Line:
    """A request."""

    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    def to_json(self) -> str:
        """A line of the file."""
        return json.dumps(
            {
                "timestamp": self.timestamp,
                "input_length": self.input_length,
                "output_length": self.output_length,
                "hash_ids": list(self.hash_ids),
            }
        )


def lines(seed: int = SEED) -> list[Line]:
    """The requests, in order of arrival."""
    rng = random.Random(seed)
    ids = count()
    system = tuple(next(ids) for _ in range(SYSTEM_BLOCKS))
    found: list[Line] = []
    while len(found) < NUM_REQUESTS:
        found += _conversation(rng, ids, system)
    return sorted(found[:NUM_REQUESTS], key=lambda line: line.timestamp)


def _conversation(rng: random.Random, ids: "count[int]", system: tuple[int, ...]) -> Iterator[Line]:
    """Each turn repeats the full blocks of the one before, and adds its answer and a question."""
    at_s = rng.uniform(0, DURATION_S)
    blocks, length = system, len(system) * BLOCK + int(rng.lognormvariate(*_FIRST))
    while at_s < DURATION_S and length <= _LONGEST:
        full = length // BLOCK
        blocks += tuple(next(ids) for _ in range(full - len(blocks)))
        rest = (next(ids),) if length % BLOCK else ()
        answer = max(1, int(rng.lognormvariate(*_ANSWER)))
        yield Line(int(at_s * 1e3), length, answer, blocks + rest)
        if rng.random() >= _MORE_TURNS:
            return
        length += answer + int(rng.lognormvariate(*_LATER))
        at_s += rng.expovariate(1 / _TURN_GAP_S)


def cached_share(requests: Sequence[Line]) -> float:
    """The share of prompt tokens in blocks that an earlier request had, too."""
    known: set[int] = set()
    cached = 0
    for request in requests:
        num_known = next((n for n, block in enumerate(request.hash_ids) if block not in known), len(request.hash_ids))
        cached += min(num_known * BLOCK, request.input_length)
        known.update(request.hash_ids)
    return cached / sum(request.input_length for request in requests)


def main() -> None:
    """Writes the file."""
    FILE.write_text("".join(line.to_json() + "\n" for line in lines()))


if __name__ == "__main__":
    main()
