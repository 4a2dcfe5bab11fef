"""What a record tells of itself."""

import pytest

from tests.loadtest.records import Schedule, record, recorded


def test_times_count_from_when_it_was_sent() -> None:
    one = record(3.0, due_s=2.5)
    assert (one.ttft_s, one.e2e_s, one.tpot_s, one.gap_s) == tuple(map(pytest.approx, (0.2, 0.4, 0.05, 0.05)))
    assert (one.held_s, one.num_tokens, one.is_done) == (0.5, 5, True)


def test_what_has_not_come_has_no_time() -> None:
    silent, short = record(0.0, Schedule(num_events=0)), record(0.0, Schedule(num_events=1))
    assert (silent.ttft_s, silent.e2e_s, silent.tpot_s, silent.gap_s) == (None, None, None, None)
    assert (short.tpot_s, short.gap_s) == (None, None)
    assert recorded(0.0, [0.1], [4]).tpot_s is None  # several tokens in one event: nothing to divide
