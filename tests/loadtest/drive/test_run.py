"""A run in virtual time: who is sent when, how many at once, and what is left at its end."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest

from loadtest.drive.events import Heard
from loadtest.drive.run import Plan, Progress, Run
from loadtest.drive.talk import Listener
from loadtest.figures.figures import Window, figures_of
from loadtest.figures.record import Ending
from loadtest.work.arrivals import AtOnce, Gamma, Replay
from loadtest.work.conversations import Conversation, Turn
from tests.doubles.virtual_loop import VirtualLoop, run_virtually
from tests.loadtest.records import Schedule, record, recorded

ONE = Conversation((Turn((5, 6), 5),))
USUAL = Schedule()


class SimulatedServer:
    """Answers by a schedule. With `places`, so many at a time, and the others queue."""

    def __init__(self, loop: VirtualLoop, schedule: Schedule, places: int = 1_000_000) -> None:
        self.loop, self.schedule = loop, schedule
        self.places = asyncio.Semaphore(places)
        self.in_flight = self.most_in_flight = 0

    def begin(self, start: float, number: int, listener: Listener) -> "SimulatedTalk":
        return SimulatedTalk(self, start, number, listener)


class SimulatedTalk:
    def __init__(self, server: SimulatedServer, start: float, number: int, listener: Listener) -> None:
        self.server, self.start, self.number, self.listener = server, start, number, listener

    async def ask(self, conversation: Conversation, turn: int, due_s: float) -> bool:
        server, schedule = self.server, self.server.schedule
        sent_s = server.loop.now() - self.start
        known: dict[str, Any] = {"conversation": self.number, "turn": turn, "due_s": due_s}
        heard = Heard(0.0)
        self.listener.began(heard)
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            async with server.places:
                began_s = server.loop.now() - self.start
                await asyncio.sleep(schedule.ttft_s + schedule.itl_s * (schedule.num_events - 1))
        except asyncio.CancelledError:
            self.listener.ended(recorded(sent_s, [], [], **known, ending=Ending.UNFINISHED), heard)
            raise
        finally:
            server.in_flight -= 1
        arrivals = record(began_s, schedule).arrivals
        self.listener.ended(recorded(sent_s, arrivals, [1] * len(arrivals), **known), heard)
        return True


def ran(
    plan: Plan, schedule: Schedule = USUAL, places: int = 1_000_000, beside: Callable[[Run], Any] | None = None
) -> tuple[Progress, SimulatedServer]:
    loop = VirtualLoop()

    async def job() -> tuple[Progress, SimulatedServer]:
        server = SimulatedServer(loop, schedule, places)
        run = Run(plan, server.begin, loop)
        meanwhile = asyncio.create_task(beside(run)) if beside else None
        progress = await run.run()
        if meanwhile:
            await meanwhile
        assert len(asyncio.all_tasks()) == 1, "the run leaves nothing behind"
        return progress, server

    return run_virtually(job(), loop)


def at_once() -> Iterator[float]:
    return AtOnce().moments(0)


def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    progress, server = ran(Plan(at_once(), repeat(ONE), is_open=False, max_concurrency=4, num_conversations=20))
    assert (len(progress.records), server.most_in_flight) == (20, 4)
    assert [record.sent_s for record in progress.records] == pytest.approx(
        [0.4 * (number // 4) for number in range(20)]
    )
    assert {record.held_s for record in progress.records} == {0.0}
    figures = figures_of(progress.records, Window(0, progress.now_s), {})
    assert figures.requests_per_s == pytest.approx(10, rel=0.3) and progress.now_s == pytest.approx(2.0)
    assert figures.ttft_ms and figures.ttft_ms.p50 == pytest.approx(200)


def test_an_open_loop_sends_when_it_is_due_however_many_run() -> None:
    moments = Gamma(50.0).moments(3)
    progress, server = ran(Plan(moments, repeat(ONE), is_open=True, num_conversations=100), Schedule(ttft_s=5.0))
    due = [at for at, _ in zip(Gamma(50.0).moments(3), range(100), strict=False)]
    assert sorted(record.sent_s for record in progress.records) == pytest.approx(due)
    assert server.most_in_flight == 100


def test_an_open_loop_with_a_limit_tells_how_long_requests_were_held() -> None:
    moments = Replay([0.0, 0.1, 0.2]).moments(0)
    progress, _ = ran(Plan(moments, repeat(ONE), is_open=True, max_concurrency=1))
    assert [record.held_s for record in progress.records] == pytest.approx([0, 0.3, 0.6])
    assert {round(record.ttft_s or 0, 9) for record in progress.records} == {0.2}


def test_turns_wait_for_answers_and_for_the_client_to_think() -> None:
    turns = Conversation((Turn((1,), 5), Turn((2,), 5, think_s=3.0)), pause_s=1.0)
    progress, _ = ran(Plan(at_once(), repeat(turns), is_open=False, max_concurrency=1, num_conversations=2))
    told = [(record.conversation, record.turn, round(record.sent_s, 9)) for record in progress.records]
    assert told == [(0, 0, 0.0), (0, 1, 3.4), (1, 0, 4.8), (1, 1, 8.2)]


def test_a_duration_ends_sending_and_the_grace_ends_waiting() -> None:
    slow = Schedule(ttft_s=50.0, num_events=1)
    plan = Plan(Replay(range(100)).moments(0), repeat(ONE), is_open=True, duration_s=10.0, grace_s=45.0)
    progress, _ = ran(plan, slow)
    assert progress.now_s == pytest.approx(55.0) and progress.num_sent == 10
    assert [record.ending for record in progress.records].count(Ending.UNFINISHED) == 4
    assert (progress.why, progress.in_flight) == ("", 0)


def test_the_time_of_a_closed_loop_ends_while_it_waits_for_a_place() -> None:
    plan = Plan(at_once(), repeat(ONE), is_open=False, max_concurrency=2, duration_s=1.0)
    progress, _ = ran(plan)
    assert len(progress.records) == 6 and progress.now_s == pytest.approx(1.2)
    assert all(record.is_done for record in progress.records)


def test_a_stop_ends_at_once_and_keeps_what_ran() -> None:
    async def ctrl_c(run: Run) -> None:
        await asyncio.sleep(1.0)
        run.stop("Ctrl-C")

    plan = Plan(Gamma(10.0).moments(1), repeat(ONE), is_open=True)
    progress, _ = ran(plan, beside=ctrl_c)
    endings = [record.ending for record in progress.records]
    assert (progress.why, progress.stopped_s, progress.in_flight) == ("Ctrl-C", pytest.approx(1.0), 0)
    assert endings.count(Ending.DONE) > 0 and endings.count(Ending.UNFINISHED) > 0
    assert progress.now_s == pytest.approx(1.0) and len(endings) == progress.num_sent


def test_what_is_in_flight_may_end_when_nothing_more_is_sent() -> None:
    async def closed(run: Run) -> None:
        await asyncio.sleep(1.0)
        run.send_no_more()

    def plan() -> Plan:
        return Plan(Gamma(10.0).moments(1), repeat(ONE), is_open=True, grace_s=5.0)

    progress, _ = ran(plan(), beside=closed)
    assert progress.records and all(record.is_done for record in progress.records)
    assert (progress.why, progress.stopped_s) == ("", None) and 1.0 < progress.now_s < 2.0
    slow, _ = ran(plan(), Schedule(ttft_s=60.0), beside=closed)
    assert {record.ending for record in slow.records} == {Ending.UNFINISHED} and slow.now_s == pytest.approx(6.0)


def test_a_server_that_falls_behind_ends_the_run() -> None:
    """It answers 10 a second; 15 arrive."""
    plan = Plan(Gamma(15.0).moments(1), repeat(ONE), is_open=True, duration_s=600.0)
    progress, _ = ran(plan, places=4)
    assert "over-saturated" in progress.why and 40 <= progress.now_s < 80


def test_it_is_not_stopped_when_told_so_nor_when_it_keeps_up() -> None:
    moments, job = Gamma(15.0).moments(1), repeat(ONE)
    behind, _ = ran(Plan(moments, job, True, duration_s=90.0, grace_s=1.0, stops_when_saturated=False), places=4)
    abreast, _ = ran(Plan(Gamma(7.0).moments(1), job, True, duration_s=300.0), places=4)
    assert behind.why == abreast.why == "" and abreast.now_s > 299
