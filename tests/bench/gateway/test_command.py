"""What the gateway costs: the arithmetic, and one short run of the real thing."""

import json
import math

import pytest

from bench.gateway.__main__ import _quantile, main


def buckets(*counts: int) -> dict[str, float]:
    edges = ("0.001", "0.01", "+Inf")
    return {f'x_bucket{{le="{edge}"}}': float(count) for edge, count in zip(edges, counts, strict=True)}


def test_a_quantile_is_the_edge_of_what_came_in_between() -> None:
    before, after = buckets(50, 50, 50), buckets(140, 150, 150)
    assert _quantile("x", before, after, 0.5) == 0.001
    assert _quantile("x", before, after, 0.95) == 0.01
    assert _quantile("x", before, buckets(50, 50, 51), 0.5) == float("inf")


@pytest.mark.slow
def test_a_short_run_measures_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    one = "--clients 2 --requests 2 --inp 8 --out 6 --step-ms 2 --rounds 1"
    crowd = "--streams 3 --streams-step-ms 5 --streams-s 0.5 --beside 1000 8000000"
    assert main([*one.split(), *crowd.split()]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["gateway"]
    added = found["ttft_added_ms"]
    assert found["cpu_us_per_token"] > 0 and found["rounds"] == 1
    for side in ("request", "first_token"):  # no p99: it lies beyond the last bucket
        assert 0 < added[f"{side}_mean"] <= (added[f"{side}_p99"] or math.inf)
    assert added["mean"] == pytest.approx(added["request_mean"] + added["first_token_mean"], abs=0.01)
    alone, short, long = found["crowd"]
    assert (alone["beside_bytes"], short["beside_bytes"], long["beside_bytes"]) == (0, 1000, 8_000_000)
    assert alone["num_beside"] == 0 and short["num_beside"] >= 1 and long["num_beside"] >= 1
    for row in found["crowd"]:  # a slow machine may read all tokens of a stream at once: then there is no gap
        assert row["cpu_us_per_token"] > 0 and row["peak_memory_mb"] > 10 and row["longest_gap_ms"] != 0
