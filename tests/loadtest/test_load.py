"""Loads: how many, how many at a time, when, and what comes beside them."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest import load as load_module
from loadtest.__main__ import main
from loadtest.load import Load, arrivals, prompts, run_load, warm_up
from runtime.clock import MonotonicClock
from tests.loadtest.openai_stand_in import StandIn, standing_in, tokens

LOAD = Load(num_requests=12, concurrency=3, prompt_tokens=8, output_tokens=2, vocab=50, seed=7)
CLOCK = MonotonicClock()


async def test_a_closed_loop_has_so_many_at_a_time_and_all_are_counted() -> None:
    stand_in = StandIn(tokens, pause_s=0.002)
    async with standing_in(stand_in) as server:
        found = await run_load(server, CLOCK, LOAD)
    assert (found.num_ok, found.num_errors, found.num_intruders) == (12, 0, 0)
    assert stand_in.most_at_once == 3
    warmed, measured = stand_in.bodies[:3], stand_in.bodies[3:]
    assert len(measured) == 12
    assert all(len(body["prompt"]) == 8 and max(body["prompt"]) < 50 for body in measured)
    seen = [tuple(body["prompt"]) for body in (*warmed, *measured)]
    assert len(set(seen)) == len(seen), "a prompt came twice: it may be cached"
    assert 0 < found.client_cpu_us_per_token < 1e6


async def test_a_server_that_does_not_keep_up_fails_and_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "ROUND_S", 0.05)
    async with standing_in(StandIn(lambda _: [b": wait\n"] * 10_000, pause_s=0.02)) as server:
        found = await run_load(server, CLOCK, LOAD, "m")
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
    monkeypatch.setattr(load_module, "DRAIN_S", 0.05)
    seen: list[dict[str, Any]] = []

    def only_the_first_long_one(body: dict[str, Any]) -> list[bytes | None]:
        if len(body["prompt"]) == 8:
            return tokens(body)
        seen.append(body)
        return tokens(body) if len(seen) == 1 else [b": wait\n"] * 10_000

    async with standing_in(StandIn(only_the_first_long_one, pause_s=0.02)) as server:
        found = await run_load(server, CLOCK, replace(LOAD, intruder_rate=50.0, intruder_tokens=40))
    assert found.num_intruders > 0 == found.num_errors
    assert found.intruder_ttft_p50_ms >= 50


async def test_a_model_that_is_named_is_asked_for() -> None:
    stand_in = StandIn(tokens)
    async with standing_in(stand_in) as server:
        await run_load(server, CLOCK, LOAD, "other")
        await run_load(server, CLOCK, LOAD)
    assert [body["model"] for body in stand_in.bodies] == ["other"] * 15 + ["stand-in"] * 15


def test_arrivals_keep_their_rate_and_prompts_their_seed() -> None:
    moments = arrivals(replace(LOAD, num_requests=4000, rate=10.0))
    assert moments[0] == 0 and moments == sorted(moments)
    assert moments[-1] == pytest.approx(400, rel=0.1)
    assert [next(prompts(1, 9, 50)), next(prompts(2, 9, 50))] == [next(prompts(1, 9, 50)), next(prompts(2, 9, 50))]
    assert next(prompts(1, 9, 50)) != next(prompts(2, 9, 50))


def test_a_warm_up_has_the_same_shape_once_per_client_and_other_prompts() -> None:
    short = warm_up(replace(LOAD, output_tokens=400, intruder_rate=1, rate=3))
    assert (short.num_requests, short.output_tokens, short.intruder_rate, short.rate) == (3, 400, 0, 0)
    assert short.seed != LOAD.seed


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
    assert "nothing answers at 127.0.0.1:9" in capsys.readouterr().err
    assert main(["drive", "--url", "nowhere"]) == 2
    assert "--url: got 'nowhere'" in capsys.readouterr().err
