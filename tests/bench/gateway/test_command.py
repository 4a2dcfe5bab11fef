"""What the gateway costs: short runs of the real thing."""

import json

import pytest

from bench.gateway.__main__ import ADDED, CPU, main
from bench.gateway.crowd import GAP
from bench.gateway.second_turn import SHARE, TARGET_SHARE
from bench.gateway.tool_tokens import BESIDE, CALLS, TEXT
from bench.gateway.tool_tokens import CPU as CPU_OF_TOOLS
from loadtest.figures.distribution import number
from tests.bench.reading import figure


@pytest.mark.parametrize("value", [0.12, 5.0, 99.0, 150.0, 1527.0, 12_345_678.0])
def test_a_number_is_read_as_it_is_shown(value: float) -> None:
    assert figure(number(value)) == value == figure(f"{number(value)} (1-2)")


@pytest.mark.slow
def test_a_short_run_measures_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    one = "--clients 2 --requests 2 --inp 8 --out 6 --step-ms 2 --rounds 1"
    crowd = "--streams 3 --streams-step-ms 5 --streams-s 0.5 --beside 1000 8000000"
    assert main(["--only", "tokens", "crowd", *one.split(), *crowd.split()]) == 0
    [machine], (alone, short, long) = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"].values()
    assert figure(machine[CPU]) > 0 and figure(machine[ADDED]) > 0 and figure(machine["client p50, ms"]) > 0
    assert [row["beside, bytes"] for row in (alone, short, long)] == [0, 1000, 8_000_000]
    assert alone["prompts"] == 0 and short["prompts"] >= 1 and long["prompts"] >= 1
    for row in (alone, short, long):  # a slow machine may read all tokens of a stream at once: then there is no gap
        assert row["CPU us a token"] > 0 and row["peak memory, MiB"] > 10 and row[GAP] != 0


@pytest.mark.slow
def test_streams_with_calls_are_measured_beside_text(capsys: pytest.CaptureFixture[str]) -> None:
    short = "--clients 2 --rounds 1 --step-ms 5 --tool-out 120"
    assert main(["--only", "tools", *short.split()]) == 0
    [rows] = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"].values()
    assert [row["answers"] for row in rows] == [TEXT, BESIDE, CALLS]
    assert all(figure(row[CPU_OF_TOOLS]) > 0 for row in rows)


@pytest.mark.slow
def test_the_second_turn_of_a_conversation_with_tools_is_cached(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--only turns --tools 12 --conversations 1".split()) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    [[turns]] = told["tables"].values()
    assert turns["prompt tokens"] > 1000 and figure(turns["TTFT second"]) > 0
    [goal] = told["goals"]
    assert (goal["words"], goal["met"]) == (SHARE, True) and goal["value"] >= TARGET_SHARE
