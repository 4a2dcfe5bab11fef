"""A stream goes on beside hostile requests, of which each is refused or answered."""

import pytest

from bench.grammar.hostile import hostile, large_answers
from bench.grammar.neighbour import BOUND_MS, Stream, calm, measure, row


@pytest.mark.broad
def test_each_is_refused_or_answered_beside_a_stream() -> None:
    rows = {found["request"]: found for found in measure(1)}
    assert {*rows} == {*hostile(0), *large_answers(0)}
    assert all(found["status"] in (200, 400) and found["answer ms"] > 0 for found in rows.values())
    assert rows["schema of a megabyte"]["status"] == 400 and rows["scores of 64 answers, 20 each"]["status"] == 200


def test_what_makes_a_request_hostile_is_left_out_for_comparison() -> None:
    for name, fields in (hostile(0) | large_answers(0)).items():
        assert calm(fields) != fields, name
    assert calm({"n": 2, "regex": "a", "max_tokens": 3}) == {"n": 2, "max_tokens": 3}


@pytest.mark.parametrize(
    ("gaps_ms", "calm_ms", "is_within"),
    [((50, 249), 10, "yes"), ((50, 251), 10, "NO"), ((399, 1), 200, "yes"), ((401, 1), 200, "NO")],
)
def test_a_gap_is_held_against_a_bound_and_against_twice_the_calm_one(
    gaps_ms: tuple[int, int], calm_ms: int, is_within: str
) -> None:
    assert BOUND_MS == 250
    found = row("x", [(200, 1.0, gap / 1e3) for gap in gaps_ms], [calm_ms / 1e3, 0.001])
    assert (found["longest gap ms"], found["without it ms"], found["within"]) == (max(gaps_ms), calm_ms, is_within)


def test_gaps_are_within_one_stream_and_overlap_what_is_asked_for() -> None:
    stream = Stream("http://nowhere")
    stream.pieces = [(1.0, 0), (2.0, 0), (5.0, 0), (50.0, 1), (51.0, 1)]
    assert stream.longest_gap(2.5, 3.0) == 3.0 and stream.longest_gap(0.5, 1.5) == 1.0
    assert stream.longest_gap(0.0, 100.0) == 3.0 and stream.longest_gap(60.0, 70.0) == 0.0


def test_the_worst_gap_has_a_place_and_pieces_are_forgotten_but_for_the_last() -> None:
    stream = Stream("http://nowhere")
    stream.pieces = [(1.0, 0), (2.0, 0), (5.0, 0), (6.0, 0)]
    assert stream.worst(0.0, 10.0) == (2.0, 5.0) and stream.worst(20.0, 30.0) == (20.0, 20.0)
    stream.forget()
    assert stream.pieces == [(6.0, 0)]
