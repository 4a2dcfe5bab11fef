"""The trace of the repository has the statistics that are published of Mooncake's, and baton bench reads it."""

from statistics import mean

import pytest

from loadtest.work.trace import FILE_BLOCK_TOKENS, TraceWork

FILE = "bench/trace/conversation.jsonl"


def test_it_has_the_published_statistics() -> None:
    """Of Mooncake's conversations: mean prompts and answers, and what a cache that never forgets would have of them."""
    requests = TraceWork.read(FILE, vocab=1000, context=None).requests
    known: set[int | str] = set()
    cached = 0
    for request in requests:
        num_known = next((n for n, block in enumerate(request.hash_ids) if block not in known), len(request.hash_ids))
        cached += min(num_known * FILE_BLOCK_TOKENS, request.input_length)
        known.update(request.hash_ids)
    assert len(requests) == 400
    assert mean(each.input_length for each in requests) == pytest.approx(12_035, rel=0.03)
    assert mean(each.output_length for each in requests) == pytest.approx(343, rel=0.03)
    assert cached / sum(each.input_length for each in requests) == pytest.approx(0.40, rel=0.03)


def test_baton_bench_reads_it_for_a_small_model() -> None:
    requests = TraceWork.read(FILE, vocab=1000, context=1024).requests
    assert max(each.input_length + each.output_length for each in requests) <= 1024
