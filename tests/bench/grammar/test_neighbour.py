"""A stream goes on beside hostile grammars, of which each is refused or answered."""

import pytest

from bench.grammar.hostile import hostile
from bench.grammar.neighbour import Stream, measure


@pytest.mark.broad
def test_each_is_refused_or_answered_beside_a_stream() -> None:
    rows = {row["grammar"]: row for row in measure(1)}
    assert {*rows} == {"none", *hostile(0)}
    assert all(row["status"] in (200, 400) and row["answer ms"] > 0 for row in rows.values())
    assert rows["none"]["status"] == 200 and rows["schema of a megabyte"]["status"] == 400


def test_gaps_are_within_one_stream_and_overlap_what_is_asked_for() -> None:
    stream = Stream("http://nowhere")
    stream.pieces = [(1.0, 0), (2.0, 0), (5.0, 0), (50.0, 1), (51.0, 1)]
    assert stream.longest_gap(2.5, 3.0) == 3.0 and stream.longest_gap(0.5, 1.5) == 1.0
    assert stream.longest_gap(0.0, 100.0) == 3.0 and stream.longest_gap(60.0, 70.0) == 0.0
