"""The trace of the repository: made by its script, with the published statistics, and read by baton bench."""

from statistics import mean

import pytest

from bench.trace.__main__ import CACHED_SHARE, FILE, MEAN_ANSWER, MEAN_PROMPT, cached_share, lines
from loadtest.work.trace import TraceWork


def test_the_file_is_what_the_script_writes() -> None:
    assert FILE.read_text() == "".join(line.to_json() + "\n" for line in lines())


def test_it_has_the_published_statistics() -> None:
    requests = lines()
    assert mean(line.input_length for line in requests) == pytest.approx(MEAN_PROMPT, rel=0.03)
    assert mean(line.output_length for line in requests) == pytest.approx(MEAN_ANSWER, rel=0.03)
    assert cached_share(requests) == pytest.approx(CACHED_SHARE, rel=0.03)


def test_what_a_perfect_cache_would_have() -> None:
    one, two, other = lines(1)[0], lines(1)[0], lines(2)[-1]
    assert cached_share([one, two]) == 0.5
    assert cached_share([one]) == cached_share([other]) == 0.0


def test_baton_bench_reads_it_for_a_small_model() -> None:
    work = TraceWork.read(str(FILE), vocab=1000, context=1024)
    assert len(work.requests) == len(lines())
    assert max(each.input_length + each.output_length for each in work.requests) <= 1024
