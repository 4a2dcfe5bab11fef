"""What the gateway costs: one short run of the real thing."""

import json

import pytest

from bench.gateway.__main__ import ADDED, CPU, main
from bench.gateway.crowd import GAP


@pytest.mark.slow
def test_a_short_run_measures_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    one = "--clients 2 --requests 2 --inp 8 --out 6 --step-ms 2 --rounds 1"
    crowd = "--streams 3 --streams-step-ms 5 --streams-s 0.5 --beside 1000 8000000"
    assert main([*one.split(), *crowd.split()]) == 0
    [machine], (alone, short, long) = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"].values()
    assert float(machine[CPU]) > 0 and float(machine[ADDED]) > 0 and float(machine["client p50, ms"]) > 0
    assert [row["beside, bytes"] for row in (alone, short, long)] == [0, 1000, 8_000_000]
    assert alone["prompts"] == 0 and short["prompts"] >= 1 and long["prompts"] >= 1
    for row in (alone, short, long):  # a slow machine may read all tokens of a stream at once: then there is no gap
        assert row["CPU us a token"] > 0 and row["peak memory, MiB"] > 10 and row[GAP] != 0
