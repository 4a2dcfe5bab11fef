"""The events of a stream become tokens with times, by whatever counts them."""

import json
from typing import Any

import pytest

from loadtest.drive.events import Heard
from loadtest.figures.record import Counting, Ending


def data(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode()


def token(text: str = "x", **fields: Any) -> bytes:
    usage = fields.pop("usage", None)
    return data({"choices": [{"index": 0, "text": text, **fields}], "usage": usage})


def heard(*lines: bytes, **options: Any) -> Heard:
    """A line each 0.25 s, from 10.25 on; the run began at 10."""
    answer = Heard(10.0, **options)
    for number, line in enumerate(lines, 1):
        if not answer.line(10 + number * 0.25, line):
            break
    return answer


USAGE = data(
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    }
)
DONE = b"data: [DONE]"


def test_token_ids_count_also_those_without_text() -> None:
    answer = heard(token(token_ids=[7]), b"", token("", token_ids=[8, 9]), token("", token_ids=[]), USAGE, DONE)
    assert (list(answer.arrivals), list(answer.counts), answer.counting) == ([0.25, 0.75], [1, 2], Counting.IDS)
    assert (answer.num_prompt, answer.num_cached, answer.num_said, answer.is_over) == (9, 4, 3, True)
    assert answer.ending is Ending.DONE and answer.error == ""


def test_continuous_usage_counts_by_differences() -> None:
    lines = [token(usage={"completion_tokens": number, "prompt_tokens": 2}) for number in (1, 3, 3, 4)]
    answer = heard(*lines, DONE)
    assert (list(answer.counts), answer.counting) == ([1, 2, 1], Counting.CONTINUOUS)


def test_usage_at_the_end_tells_whether_events_were_tokens() -> None:
    one_each = heard(token(), token(), token(), USAGE, DONE)
    assert (list(one_each.counts), one_each.counting) == ([1, 1, 1], Counting.USAGE)
    assert heard(token(), token(), USAGE, DONE).counting is Counting.CHUNKS
    assert heard(token(), token(), DONE).counting is Counting.CHUNKS


def test_a_chat_is_read_too_and_an_empty_delta_is_no_token() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "yes"}, {}]
    answer = heard(*(data({"choices": [{"delta": delta}]}) for delta in deltas), DONE, keeps=True)
    assert (list(answer.arrivals), answer.texts) == ([0.5, 0.75], ["hm", "yes"])


def test_comments_and_other_fields_of_events_are_no_lines_of_a_body() -> None:
    answer = heard(b": ping", b"event: token", b"", token(), DONE)
    assert (answer.others, len(answer.arrivals), answer.num_events) == ([], 1, 2)


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        (data({"error": {"message": "out of pages"}}), "error in the stream", "out of pages"),
        (b"data: {nonsense", "not JSON", "nonsense"),
        (b"data: 3", "not an event", "3"),
    ],
)
def test_a_failure_in_the_stream_is_kept(line: bytes, kind: str, words: str) -> None:
    answer = heard(token(), line, data({"error": {"message": "second"}}))
    assert (answer.ending, answer.kind) == (Ending.FAILED, kind) and words in answer.error


def test_a_client_leaves_when_it_has_enough() -> None:
    answer = heard(token(token_ids=[1]), token(token_ids=[2, 3]), token(token_ids=[4]), cancel_after=2)
    assert (answer.ending, answer.tokens_so_far) == (Ending.CANCELLED, 3)


def test_equal_answers_have_equal_hashes_and_only_kept_ones_any() -> None:
    one, same, other = (heard(token(token_ids=ids), DONE, keeps=True).answer for ids in ([1, 2], [1, 2], [1, 3]))
    assert one == same != other and heard(token(token_ids=[1]), DONE).answer == 0
    assert heard(token("a"), token("b"), keeps=True).answer == heard(token("ab"), keeps=True).answer
