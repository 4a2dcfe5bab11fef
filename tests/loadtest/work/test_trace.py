"""The trace's form, made and read."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest

from loadtest.work.trace import BLOCK_TOKENS, FILE_BLOCK_TOKENS, LONGEST, TraceRequest, TraceWork, prompt_of, trace
from protocol.errors import ConfigError

CONVERSATIONS = "bench/trace/conversation.jsonl"


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


# ---- traces from a file ----

GOOD = {"timestamp": 1500, "input_length": 1000, "output_length": 60, "hash_ids": [7, 8]}


def written(tmp_path: Path, *lines: object) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def test_a_file_is_replayed_in_order_with_its_blocks(tmp_path: Path) -> None:
    later = {"timestamp": 3500, "input_length": 513, "output_length": 5, "hash_ids": [7, 9]}
    work = TraceWork.read(written(tmp_path, later, GOOD), 4096, None)
    assert list(work.arrivals(2.0).moments(0)) == [0.0, 1.0]
    one, two = (conversation.turns[0] for conversation in work.conversations(3))
    assert (len(one.said), one.max_tokens, len(two.said), two.max_tokens) == (1000, 60, 513, 5)
    assert one.said[:512] == two.said[:512] and one.said[512] != two.said[512]


def test_lengths_are_scaled_until_the_longest_fits(tmp_path: Path) -> None:
    work = TraceWork.read(written(tmp_path, GOOD), 4096, 300)
    [conversation] = work.conversations(0)
    [turn] = conversation.turns
    assert 295 <= len(turn.said) + turn.max_tokens <= 300
    assert work.block_tokens < len(turn.said) <= 2 * work.block_tokens
    with pytest.raises(ConfigError, match="--max-model-len: got 2, expected at least 3 for a prompt of 2 blocks"):
        TraceWork.read(written(tmp_path, GOOD), 4096, 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: got {, expected a JSON object"),
        ([1], "line 2: .*expected a JSON object"),
        ({**GOOD, "timestamp": -1}, "line 2: got timestamp = -1, expected a number of at least 0"),
        ({**GOOD, "input_length": "9"}, "line 2: got input_length = 9, expected a number of at least 1"),
        ({**GOOD, "hash_ids": [1]}, "line 2: got 1 hash_ids, expected 2 for 1000 tokens in blocks of 512"),
        ({**GOOD, "hash_ids": [1, None]}, "line 2: .*expected integers or strings"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TraceWork.read(written(tmp_path, GOOD, line), 4096, None)


def test_the_trace_of_the_repository_has_the_published_statistics() -> None:
    """Of Mooncake's conversations: mean prompts and answers, and what a cache that never forgets would have of them."""
    requests = TraceWork.read(CONVERSATIONS, vocab=1000, context=None).requests
    known: set[int | str] = set()
    cached = 0
    for request in requests:
        num_known = next((n for n, block in enumerate(request.hash_ids) if block not in known), len(request.hash_ids))
        cached += min(num_known * FILE_BLOCK_TOKENS, request.input_length)
        known.update(request.hash_ids)
    assert len(requests) == 400
    assert mean(traced.input_length for traced in requests) == pytest.approx(12_035, rel=0.03)
    assert mean(traced.output_length for traced in requests) == pytest.approx(343, rel=0.03)
    assert cached / sum(traced.input_length for traced in requests) == pytest.approx(0.40, rel=0.03)


def test_the_trace_of_the_repository_is_read_for_a_small_model() -> None:
    requests = TraceWork.read(CONVERSATIONS, vocab=1000, context=1024).requests
    assert max(request.input_length + request.output_length for request in requests) <= 1024
