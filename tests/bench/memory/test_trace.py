"""The trace's form, and the hit rate that no cache exceeds."""

from itertools import pairwise

from bench.memory.trace import BLOCK_TOKENS, LONGEST, TraceRequest, prompt_of, trace, unlimited_hits


def test_a_seed_gives_one_trace_in_order() -> None:
    requests = trace(1, 60, 20.0)
    assert requests == trace(1, 60, 20.0) != trace(2, 60, 20.0)
    assert 60 <= len(requests) < 70
    assert all(earlier.timestamp <= later.timestamp < 20_000 for earlier, later in pairwise(requests))
    for request in requests:
        assert 0 < request.input_length <= LONGEST and request.output_length > 0
        assert len(request.hash_ids) == -(-request.input_length // BLOCK_TOKENS)


def test_equal_ids_are_equal_tokens() -> None:
    first = TraceRequest(0, BLOCK_TOKENS + 5, 1, (3, 4))
    second = TraceRequest(9, 2 * BLOCK_TOKENS, 1, (3, 5))
    one, two = (prompt_of(request, 7, 4096) for request in (first, second))
    assert (len(one), len(two)) == (BLOCK_TOKENS + 5, 2 * BLOCK_TOKENS)
    assert one[:BLOCK_TOKENS] == two[:BLOCK_TOKENS] and one[BLOCK_TOKENS:] != two[BLOCK_TOKENS:][:5]
    assert prompt_of(first, 8, 4096) != one


def test_a_hit_is_what_begins_alike_but_one_token() -> None:
    requests = [
        TraceRequest(0, 2 * BLOCK_TOKENS, 1, (0, 1)),
        TraceRequest(1, 2 * BLOCK_TOKENS + 9, 1, (0, 1, 2)),  # two blocks
        TraceRequest(2, 2 * BLOCK_TOKENS, 1, (0, 1)),  # all of it: its last page is computed
        TraceRequest(3, 2 * BLOCK_TOKENS, 1, (3, 1)),  # begins in another way
    ]
    assert unlimited_hits(requests, 16) == 2 * BLOCK_TOKENS + 2 * BLOCK_TOKENS - 16
