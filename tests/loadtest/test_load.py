"""Loads: how many, how many at a time, when, and what comes beside them."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest import load as load_module
from loadtest import measure as measure_module
from loadtest.__main__ import main
from loadtest.load import PlainLoad, run_load
from loadtest.work.arrivals import Gamma
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import StandIn, standing_in, tokens

LOAD = PlainLoad(num_requests=12, concurrency=3, prompt_tokens=8, output_tokens=2, vocab=50, seed=7)
CLOCK = MonotonicClock()
NUM_BEFORE = 4  # a probe, and a warm-up for each client


async def test_a_closed_loop_has_so_many_at_a_time_and_all_are_counted() -> None:
    stand_in = StandIn(tokens, pause_s=0.002)
    async with standing_in(stand_in) as server:
        found = await run_load(server, CLOCK, LOAD)
    assert (found.num_ok, found.num_errors, found.num_intruders) == (12, 0, 0)
    assert stand_in.most_at_once == 3
    warmed, measured = stand_in.bodies[1:NUM_BEFORE], stand_in.bodies[NUM_BEFORE:]
    assert len(measured) == 12
    for body in (*warmed, *measured):
        assert len(body["prompt"]) == 8 and max(body["prompt"]) < 50
        assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (2, True, 0)
    seen = [tuple(body["prompt"]) for body in (*warmed, *measured)]
    assert len(set(seen)) == len(seen), "a prompt came twice: it may be cached"
    assert 0 < found.client_cpu_us_per_token < 1e6 and found.client_late_p99_ms >= 0


async def test_a_server_that_does_not_keep_up_fails_and_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "ROUND_S", 0.2)
    asked: list[Any] = []

    def only_the_first(body: dict[str, Any]) -> list[bytes | None]:
        asked.append(body)
        return tokens(body) if len(asked) == 1 else [b": wait\n"] * 10_000

    async with standing_in(StandIn(only_the_first, pause_s=0.02)) as server:
        found = await run_load(server, CLOCK, LOAD)
    assert (found.num_ok, found.num_errors) == (0, 12)
    assert "no end within" in found.first_error


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    stand_in = StandIn(tokens, pause_s=0.02)
    async with standing_in(stand_in) as server:
        found = await run_load(server, CLOCK, replace(LOAD, rate=1000.0))
    assert found.num_ok == 12
    assert stand_in.most_at_once > 3


async def test_intruders_come_beside_and_are_counted_apart() -> None:
    stand_in = StandIn(tokens, pause_s=0.02)
    async with standing_in(stand_in) as server:
        found = await run_load(server, CLOCK, replace(LOAD, intruder_rate=50.0, intruder_tokens=40))
    long = [body for body in stand_in.bodies if len(body["prompt"]) == 40]
    assert (found.num_ok, found.num_errors) == (12, 0)
    assert found.num_intruders == len(long) - 1 > 0  # one warms up
    assert all(body["max_tokens"] == 1 for body in long)
    assert found.intruder_ttft_max_ms >= found.intruder_ttft_p50_ms > 0


async def test_intruders_without_an_answer_are_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "DRAIN_S", 0.05)
    seen: list[dict[str, Any]] = []

    def only_the_first_long_one(body: dict[str, Any]) -> list[bytes | None]:
        if len(body["prompt"]) != 40:
            return tokens(body)
        seen.append(body)
        return tokens(body) if len(seen) == 1 else [b": wait\n"] * 10_000

    async with standing_in(StandIn(only_the_first_long_one, pause_s=0.02)) as server:
        found = await run_load(server, CLOCK, replace(LOAD, intruder_rate=50.0, intruder_tokens=40))
    assert found.num_intruders > 0 == found.num_errors
    assert found.intruder_ttft_p50_ms >= 50


async def test_a_model_that_is_named_must_be_there() -> None:
    stand_in = StandIn(tokens)
    async with standing_in(stand_in) as server:
        await run_load(server, CLOCK, LOAD, "stand-in")
        with pytest.raises(ConfigError, match="--model: got other, expected a model of"):
            await run_load(server, CLOCK, LOAD, "other")
    assert {body["model"] for body in stand_in.bodies} == {"stand-in"}


def test_a_plain_load_is_one_of_baton_bench() -> None:
    found = replace(LOAD, rate=2.5, intruder_rate=1.0).measured
    assert (found.max_concurrency, found.num_conversations, found.num_warmups) == (None, 12, 3)
    assert (found.arrivals, found.intruder_rate, found.intruder_tokens) == (Gamma(2.5), 1.0, 1500)
    assert LOAD.measured.max_concurrency == 3 and not LOAD.measured.is_open


@pytest.mark.parametrize(
    "words",
    [
        "--quick --compare overlap",
        "--scenario pair --compare overlap",
        "--scenario both",
        "--num 5",
        "--compare peer --vocab 7",
        "drive",
        "drive --url http://x --rate 1 --concurrency 2",
        "drive --url http://x --rate nan",
        "drive --url http://x --vocab 1",
        "--rounds 0",
        "--compare nothing",
    ],
)
def test_arguments_that_go_with_nothing_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert "error" in capsys.readouterr().err


def test_what_is_no_number_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["drive", "--url", "http://x", "--num", "many"])
    assert "argument --num: invalid int value: 'many'" in capsys.readouterr().err


def test_drive_says_who_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drive", "--url", "http://127.0.0.1:9"]) == 2
    assert "nothing answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert main(["drive", "--url", "nowhere"]) == 2
    assert "--url: got 'nowhere'" in capsys.readouterr().err
