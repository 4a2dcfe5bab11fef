"""Plain loads: how many, how many at a time, what comes beside them, and what a table says of them."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest import load as load_module
from loadtest.__main__ import main
from loadtest.load import cells_of, failures, plain_load, run_load
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import StandIn, standing_in, tokens
from tests.loadtest.reports import measured

LOAD = plain_load(12, 3, prompt_tokens=8, output_tokens=2, vocab=50, seed=7)
CLOCK = MonotonicClock()
NUM_BEFORE = 4  # a probe, and a warm-up for each client


async def test_a_closed_loop_has_so_many_at_a_time_and_all_are_counted() -> None:
    stand_in = StandIn(tokens, pause_s=0.002)
    async with standing_in(stand_in) as server:
        measured = await run_load(server, CLOCK, LOAD)
    assert (measured.figures.endings["done"], failures(measured), measured.beside) == (12, "", None)
    assert stand_in.most_at_once == 3
    warmed, asked = stand_in.bodies[1:NUM_BEFORE], stand_in.bodies[NUM_BEFORE:]
    assert len(asked) == 12
    for body in (*warmed, *asked):
        assert len(body["prompt"]) == 8 and max(body["prompt"]) < 50
        assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (2, True, 0)
    seen = [tuple(body["prompt"]) for body in (*warmed, *asked)]
    assert len(set(seen)) == len(seen), "a prompt came twice: it may be cached"


async def test_a_server_that_does_not_keep_up_fails_and_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "ROUND_S", 0.2)
    asked: list[Any] = []

    def only_the_first(body: dict[str, Any]) -> list[bytes | None]:
        asked.append(body)
        return tokens(body) if len(asked) == 1 else [b": wait\n"] * 10_000

    async with standing_in(StandIn(only_the_first, pause_s=0.02)) as server:
        measured = await run_load(server, CLOCK, LOAD)
    assert failures(measured).startswith("12 requests failed: no end within")


async def test_intruders_come_beside_and_are_counted_apart() -> None:
    stand_in = StandIn(tokens, pause_s=0.02)
    async with standing_in(stand_in) as server:
        measured = await run_load(server, CLOCK, replace(LOAD, intruder_rate=50.0, intruder_tokens=40))
    long = [body for body in stand_in.bodies if len(body["prompt"]) == 40]
    assert (measured.figures.endings["done"], failures(measured)) == (12, "")
    assert measured.beside is not None and 0 < measured.beside.num_sent <= len(long) - 1  # one warms up
    assert all(body["max_tokens"] == 1 for body in long)
    assert (cells_of(measured)["long prompts' TTFT p50"] or 0) > 0


def test_a_figure_of_too_few_values_has_no_cell() -> None:
    cells = cells_of(measured())
    absent = {name for name, value in cells.items() if value is None and not name.startswith("long prompts")}
    assert absent == {"cached share", "TTFT p99", "TTFT p99.9", "ITL p99.9"}
    assert (cells["TTFT p50"], cells["ITL max"]) == (pytest.approx(200), pytest.approx(50))


def test_a_word_that_is_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["drive"], ["bench", "drive"]):
        assert main(words) == 2
        assert "baton bench: error: got 'drive', expected one of run, sweep, compare" in capsys.readouterr().err
