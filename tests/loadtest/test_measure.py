"""What is measured of a run, and a whole one on an endpoint that keeps a schedule."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest.drive.run import Progress
from loadtest.drive.server import find_model
from loadtest.drive.talk import COMPLETIONS, Asking, TokenHistory
from loadtest.figures.record import Ending
from loadtest.http_exchange import Connections
from loadtest.measure import Exactness, Load, exactness_of, measure, prepared, window_of
from loadtest.work.arrivals import AtOnce, Gamma
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from runtime.clock import MonotonicClock
from tests.loadtest.echoing import PIECES_BESIDE_TOKENS, echoing
from tests.loadtest.records import Schedule, record

WORK = RandomWork(Lengths("fixed", 8), Lengths("fixed", 5))
LOAD = Load(work=WORK, arrivals=AtOnce(), max_concurrency=4, num_conversations=20)
CLOCK = MonotonicClock()


async def measured_on_echo(load: Load) -> Any:
    async with echoing() as server:
        connections = Connections(server, CLOCK)
        asking = Asking(connections, COMPLETIONS, "echo", TokenHistory)
        endpoint = await prepared(server, await find_model(server, CLOCK, None), asking, load, CLOCK)
        connections.close()
        return await measure(endpoint, load, None, lambda _: None)


async def test_a_run_counts_every_token_and_what_the_server_counts() -> None:
    run = await measured_on_echo(replace(LOAD, num_warmups=3))
    assert run.figures.endings == {"done": 20, "failed": 0, "cancelled": 0, "unfinished": 0}
    assert (run.figures.unit, run.figures.counted_by) == ("tokens", ("token ids",))
    assert run.progress.num_tokens == 100
    assert run.counted["pieces_total"] == 100 + PIECES_BESIDE_TOKENS * 20
    assert run.figures.mean_prompt == 8 and run.figures.ttft_ms.least >= 4


async def test_answers_are_compared_with_a_first_pass() -> None:
    run = await measured_on_echo(replace(LOAD, num_verified=7, cancel_share=0.2))
    assert 0 < run.exactness.num_compared <= 7 and run.exactness.num_wrong == 0


async def test_long_prompts_beside_the_load_are_counted_apart() -> None:
    load = replace(LOAD, intruder_rate=100.0, intruder_tokens=50, num_conversations=60)
    run = await measured_on_echo(load)
    assert run.figures.endings["done"] == 60 and run.figures.mean_prompt == 8
    assert run.beside.mean_prompt == 50 and run.beside.mean_answer == 1
    assert run.beside.endings["done"] > 3 and sum(run.beside.endings.values()) == run.beside.num_sent
    assert load.words().endswith("; beside 100 long prompts a second (50 tokens)")


async def test_several_turns_have_their_answers() -> None:
    work = replace(WORK, num_turns=Lengths("fixed", 3))
    run = await measured_on_echo(replace(LOAD, work=work, num_conversations=4, think_s=0.001))
    assert [record.num_prompt for record in run.records if record.turn == 2] == [8 * 3 + 5 * 2] * 4


def test_the_window_ends_with_the_answers_the_duration_or_the_stop() -> None:
    progress = Progress(records=[record(0.0), record(5.0, Schedule(ttft_s=9.0))], now_s=20.0)
    assert window_of(LOAD, progress).end_s == pytest.approx(14.2)
    assert window_of(replace(LOAD, duration_s=10.0), progress).end_s == pytest.approx(10)
    trimmed = window_of(replace(LOAD, warmup_s=1.0, cooldown_s=2.0), progress)
    assert (trimmed.start_s, trimmed.end_s) == (1.0, pytest.approx(12.2))
    progress.stopped_s = 3.0
    assert window_of(LOAD, progress).end_s == pytest.approx(3)
    assert window_of(replace(LOAD, warmup_s=8.0), Progress(now_s=2.0)).length_s > 0


def test_only_whole_answers_of_the_first_pass_are_compared() -> None:
    records = [record(0.0, conversation=0, answer=1), record(0.0, conversation=1, answer=2)]
    records += [record(0.0, conversation=2, answer=9, ending=Ending.CANCELLED), record(0.0, conversation=3, answer=3)]
    assert exactness_of(records, {(0, 0): 1, (1, 0): 7, (2, 0): 2}) == Exactness(2, 1)


def test_a_load_is_told_in_one_line() -> None:
    load = replace(LOAD, arrivals=Gamma(4.0), duration_s=60.0)
    assert load.words() == (
        "random, 8 tokens in, 5 out; 4 a second (Poisson), at most 4 at a time; 20 conversations or 60 s"
    )
    assert load.is_open and not LOAD.is_open
