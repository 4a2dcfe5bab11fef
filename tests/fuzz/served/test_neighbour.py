"""Gaps of a stream."""

from tests.fuzz.served.neighbour import Stream


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
