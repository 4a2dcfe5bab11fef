"""Each figure equals that of the schedule by which the answers came."""

import pytest

from loadtest.figures.figures import Window, figures_of
from loadtest.figures.record import Counting, Ending
from tests.loadtest.records import Schedule, record, recorded

ALL = Window(0.0, 10.0)


def test_figures_are_the_schedules_own() -> None:
    """One request each 0.1 s: 5 tokens in 0.4 s."""
    figures = figures_of([record(number * 0.1, num_prompt=30, num_cached=10) for number in range(50)], ALL, {})
    assert (
        figures.ttft_ms and figures.itl_ms and figures.tpot_ms and figures.gap_ms and figures.e2e_ms and figures.held_ms
    )
    assert (figures.unit, figures.counted_by, figures.num_sent) == ("tokens", ("token ids",), 50)
    assert figures.ttft_ms.p50 == figures.ttft_ms.p90 == pytest.approx(200)
    assert (figures.itl_ms.count, figures.itl_ms.p50, figures.itl_ms.mean) == (
        200,
        pytest.approx(50),
        pytest.approx(50),
    )
    assert (figures.tpot_ms.p50, figures.gap_ms.most, figures.e2e_ms.p50) == tuple(map(pytest.approx, (50, 50, 400)))
    assert (figures.tokens_per_s, figures.requests_per_s) == (pytest.approx(25), pytest.approx(5))
    assert figures.tokens_per_s_per_user and figures.tokens_per_s_per_user.p50 == pytest.approx(20)
    assert (figures.prompt_tokens_per_s, figures.cached_share) == (pytest.approx(150), pytest.approx(1 / 3))
    assert (figures.mean_prompt, figures.mean_answer, figures.fairness) == (30, 5, pytest.approx(1))
    assert figures.held_ms.most == 0 and figures.goodput_per_s is None


def test_an_event_of_several_tokens_is_as_many_short_gaps() -> None:
    figures = figures_of([record(0.0, Schedule(num_events=3, per_event=4, itl_s=0.1))], ALL, {})
    assert figures.itl_ms and (figures.itl_ms.count, figures.itl_ms.p50) == (8, pytest.approx(25))
    assert figures.gap_ms and figures.gap_ms.most == pytest.approx(100)
    assert figures.tpot_ms and figures.tpot_ms.p50 == pytest.approx(200 / 11)


def test_a_stall_is_the_worst_gap_and_the_mean_hides_it() -> None:
    figures = figures_of([recorded(0.0, [0.1, 0.2, 1.2, 1.3], [1, 1, 1, 1])], ALL, {})
    assert (
        figures.gap_ms
        and figures.tpot_ms
        and (figures.gap_ms.most, figures.tpot_ms.p50) == tuple(map(pytest.approx, (1000, 400)))
    )


def test_only_what_lies_in_the_window_counts() -> None:
    slow = Schedule(ttft_s=1.0, itl_s=1.0, num_events=4)
    figures = figures_of([record(0.0), record(1.5, slow), record(4.0), record(6.0)], Window(1.0, 5.0), {})
    assert (figures.num_sent, figures.requests_per_s) == (2, pytest.approx((1 + 1) / 4 - 1 / 4))
    assert figures.tokens_per_s == pytest.approx((3 + 5) / 4)
    assert figures.ttft_ms and (figures.ttft_ms.least, figures.ttft_ms.most) == (
        pytest.approx(200),
        pytest.approx(1000),
    )


def test_what_did_not_end_well_is_counted_and_in_no_latency() -> None:
    records = [
        record(0.0),
        record(0.1, Schedule(ttft_s=5.0), ending=Ending.UNFINISHED),
        record(0.2, Schedule(num_events=0), ending=Ending.FAILED, kind="HTTP 503", error="full"),
        record(0.3, Schedule(num_events=0), ending=Ending.FAILED, kind="HTTP 503", error="later"),
        record(0.4, Schedule(num_events=2), ending=Ending.CANCELLED),
    ]
    figures = figures_of(records, ALL, {"ttft": 300})
    assert figures.endings == {"done": 1, "failed": 2, "cancelled": 1, "unfinished": 1}
    assert (figures.errors, figures.first_errors) == ({"HTTP 503": 2}, {"HTTP 503": "full"})
    assert figures.ttft_ms and figures.ttft_ms.count == 1
    assert figures.tokens_per_s == pytest.approx((5 + 5 + 2) / 10)
    assert (figures.goodput_per_s, figures.good_share) == (pytest.approx(0.1), pytest.approx(1 / 4))


def test_goodput_asks_for_every_limit() -> None:
    slow_start, stalls = Schedule(ttft_s=0.6), recorded(0.0, [0.1, 0.2, 0.9], [1, 1, 1])
    records = [record(0.0), record(1.0, slow_start), stalls]
    assert [
        figures_of(records, ALL, slos).good_share for slos in ({"ttft": 500}, {"gap": 500}, {"ttft": 500, "gap": 500})
    ] == [pytest.approx(share) for share in (2 / 3, 2 / 3, 1 / 3)]


def test_one_request_whose_tokens_nothing_counts_makes_all_of_them_chunks() -> None:
    figures = figures_of([record(0.0), record(1.0, counting=Counting.CHUNKS)], ALL, {})
    assert (figures.unit, figures.counted_by) == ("chunks", ("chunks", "token ids"))


def test_unequal_speeds_are_unfair() -> None:
    """5 tokens in 0.4 s, and in 2 s."""
    figures = figures_of([record(0.0), record(0.0, Schedule(ttft_s=0.2, itl_s=0.45))], ALL, {})
    assert figures.fairness == pytest.approx((12.5 + 2.5) ** 2 / (2 * (12.5**2 + 2.5**2)))


@pytest.mark.parametrize("gap_s", [0.0, 1e-7, 1e-4])
@pytest.mark.parametrize("num_events", [1, 2, 5])
def test_an_answer_in_one_packet_is_as_fast_as_its_client_has_waited(gap_s: float, num_events: int) -> None:
    """A router or a proxy may hold an answer back until it is whole. Its events then come at once, as late as its last
    token would have, and the others are no slower for that."""
    start = record(0.0).arrivals[-1]
    arrivals = [start + index * gap_s for index in range(num_events)]
    whole = recorded(0.0, arrivals, [5 - num_events + 1] + [1] * (num_events - 1))
    figures = figures_of([*(record(0.0) for _ in range(69)), whole], ALL, {})
    assert figures.fairness == pytest.approx(1, abs=1e-4)


def test_without_requests_there_are_no_figures() -> None:
    figures = figures_of([], ALL, {"ttft": 1})
    assert (figures.ttft_ms, figures.tokens_per_s, figures.good_share, figures.cached_share) == (None, 0, None, None)
