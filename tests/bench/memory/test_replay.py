"""The hit rate that no cache exceeds."""

from bench.memory.replay import unlimited_hits
from loadtest.work.trace import BLOCK_TOKENS, TraceRequest


def test_a_hit_is_what_begins_alike_but_one_token() -> None:
    requests = [
        TraceRequest(0, 2 * BLOCK_TOKENS, 1, (0, 1)),
        TraceRequest(1, 2 * BLOCK_TOKENS + 9, 1, (0, 1, 2)),  # two blocks
        TraceRequest(2, 2 * BLOCK_TOKENS, 1, (0, 1)),  # all of it: its last page is computed
        TraceRequest(3, 2 * BLOCK_TOKENS, 1, (3, 1)),  # begins in another way
    ]
    assert unlimited_hits(requests, 16) == 2 * BLOCK_TOKENS + 2 * BLOCK_TOKENS - 16
