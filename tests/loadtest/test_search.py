"""A sweep finds the knee, in few runs, and says what it could not find."""

from dataclasses import replace

import pytest

from loadtest.bench_flags import bench_parser, sweep_flags
from loadtest.measure import Measured
from loadtest.search import Point, Search, bounds, search_of
from loadtest.work.arrivals import Gamma
from protocol.errors import ConfigError
from tests.loadtest.reports import LOAD, measured

SEARCH = Search(first_rate=1.0, burstiness=1.0, target_share=0.9, most_runs=20, precision=1.1)


def searched(knee: float, search: Search = SEARCH) -> list[Point]:
    """A server that is good up to `knee`."""
    points: list[Point] = []
    while (rate := search.next_rate(points)) is not None:
        points.append(Point(rate, rate <= knee))
    return points


@pytest.mark.parametrize("knee", [0.03, 0.9, 1.0, 7.7, 300.0])
def test_the_knee_is_known_to_the_precision(knee: float) -> None:
    points = searched(knee)
    best, worst = bounds(points)
    assert best is not None and worst is not None
    assert best <= knee < worst <= 1.1 * best and len(points) < 16


def test_a_search_ends_after_its_runs_and_where_the_client_cannot_tell() -> None:
    assert len(searched(1e9, replace(SEARCH, most_runs=5))) == 5
    assert SEARCH.next_rate([Point(1.0, True), Point(2.0, False, is_known=False)]) is None


def test_a_good_run_above_a_bad_one_is_chance() -> None:
    points = [Point(1.0, True), Point(2.0, False), Point(4.0, True)]
    assert bounds(points) == (1.0, 2.0)


def run_at(rate: float, scale: float, refusal: str | None = None) -> Measured:
    """Of 40 requests, 95% meet 500 ms at scale 1, and none at scale 3."""
    return measured(scale, load=replace(LOAD, arrivals=Gamma(rate)), refusal=refusal)


def test_what_was_found_is_one_sentence() -> None:
    runs = [run_at(1.0, 1.0), run_at(2.0, 1.0), run_at(4.0, 3.0)]
    assert SEARCH.sentences(runs) == ["up to 2 a second 90% of the requests meet ttft:500, and at 4 fewer do"]
    assert SEARCH.sentences(runs[:2])[0].startswith("up to 2 a second, the largest rate that was tried, 90%")
    assert SEARCH.sentences(runs[2:]) == ["at no rate, down to 4 a second, 90% of the requests meet ttft:500"]
    assert (SEARCH.status(runs), SEARCH.status(runs[2:])) == (0, 1)

    refused = SEARCH.sentences([runs[0], run_at(2.0, 1.0, "this client was the bottleneck")])
    assert refused[1] == "at 2 a second the search ended: this client was the bottleneck"


def test_the_next_run_has_the_rate_and_the_burstiness() -> None:
    search = replace(SEARCH, burstiness=0.5)
    assert search.next_arrivals(LOAD, []) == Gamma(1.0, 0.5)
    assert search.next_arrivals(LOAD, [run_at(4.0, 1.0)]) == Gamma(8.0, 0.5)


def test_a_run_that_was_stopped_is_not_good() -> None:
    run = run_at(4.0, 1.0)
    run.progress.why = "the server is over-saturated"
    assert SEARCH.points([run]) == [Point(4.0, False)]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "baton bench sweep: expected --goodput"),
        ("--goodput ttft:5 --max-concurrency 3", "--max-concurrency: a sweep chooses the rate itself"),
        ("--goodput ttft:5 --repeat 3", "baton bench sweep: a trace has rates of its own"),
    ],
)
def test_what_cannot_be_swept_is_one_sentence(typed: str, words: str) -> None:
    parser = bench_parser("sweep")
    sweep_flags(parser)
    with pytest.raises(ConfigError) as caught:
        search_of(parser.parse_args(typed.split()))
    assert caught.value.message.startswith(words)


def test_flags_describe_a_search() -> None:
    parser = bench_parser("sweep")
    sweep_flags(parser)
    asked = parser.parse_args("--goodput ttft:5 --request-rate 3 --target-share 0.95 --most-runs 4".split())
    assert search_of(asked) == Search(3.0, 1.0, 0.95, 4, 1.1)
