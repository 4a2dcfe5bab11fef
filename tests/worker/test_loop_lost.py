"""A worker that is declared lost while its process lives: how its life ends, and how the next one begins."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.messages_gateway import (
    CacheFlushed,
    DeclaredLost,
    FlushCache,
    Heartbeat,
    Register,
    RegisterAgain,
    ToGateway,
    Welcome,
)
from protocol.messages_group import GroupPlace
from protocol.prefixes import packed, prefix_hashes
from protocol.worker_facts import CacheNews
from scheduler.planning.kv_manager import CacheKey, KvManager
from tests.worker.conftest import IDENTITY, Bench, Welcoming, keep_cached
from worker.gateway_link import JOIN_DEADLINE_S
from worker.known_gateway import KnownGateway
from worker.loop import DRAIN_S, HEARTBEAT_S
from worker.parts import Ending, RefusedByGateway, WorkerBroken

LOST = DeclaredLost("worker 'unified-0' was silent for 2.0 s")
IDS, KEY = packed([5] * 150), b"key"
PROMPT = CacheKey(IDS, "")


class Launches:
    """Those of a core that was reset: they go on for `num_turns`. `on_step` is called at each."""

    broken, oldest_launch = "", 0

    def __init__(self, num_turns: float) -> None:
        self.num_turns, self.num_steps = num_turns, 0
        self.on_step: Callable[[], object] = lambda: None

    @property
    def busy(self) -> bool:
        return self.num_steps < self.num_turns

    def turn(self) -> bool:
        self.num_steps += 1
        self.on_step()
        return False


class Asleep(Welcoming):
    """Declares the worker lost at its first heartbeat; `arrived_later` is what it says after."""

    def __init__(self, num_turns: float = 0) -> None:
        super().__init__(self.lose)
        self.launches = Launches(num_turns)
        self.arrived_later: list[ToGateway] = []

    def __call__(self, bench: Bench, arrived: list[ToGateway]) -> None:
        self.arrived_later += arrived if self.num_beats else ()
        super().__call__(bench, arrived)

    def lose(self, bench: Bench, _beat: Heartbeat) -> None:
        bench.core.loop = self.launches
        bench.send(LOST)
        bench.send(LOST)  # as at each of its messages


def test_it_drops_what_it_has_and_closes_its_links_before_its_launches_end(context: Any) -> None:
    asleep, closed = Asleep(num_turns=5), list[tuple[int, int]]()
    bench = Bench(context, asleep)
    bench.peers.close = lambda: closed.append((bench.core.num_resets, asleep.launches.num_steps))  # type: ignore[method-assign]
    assert bench.loop.run() is Ending.LOST
    assert closed == [(1, 0)], "its requests are gone by then, and no launch was waited for"
    assert asleep.launches.num_steps == 5 and bench.core.num_resets == 1
    assert not asleep.arrived_later, "it says nothing more"
    bench.close()


def test_while_its_launches_end_it_gives_signs_of_life_and_hears_nobody(context: Any) -> None:
    asleep, beats = Asleep(num_turns=8), 0
    bench = Bench(context, asleep)
    bench.peers.receive = lambda: pytest.fail("it hears a peer") if bench.core.num_resets else None  # type: ignore[method-assign]

    def on_turn(now: float) -> None:
        nonlocal beats
        beats += bench.core.num_resets

    bench.status.alive = on_turn  # type: ignore[method-assign]
    asleep.launches.on_step = lambda: bench.clock.advance(HEARTBEAT_S)
    assert bench.loop.run() is Ending.LOST
    assert beats == 8
    bench.close()


def test_a_launch_that_never_ends_ends_the_process(context: Any) -> None:
    asleep = Asleep(num_turns=float("inf"))
    bench = Bench(context, asleep)
    asleep.launches.on_step = lambda: bench.clock.advance(DRAIN_S / 4)
    with pytest.raises(WorkerBroken, match="a launch has not ended in 60 s") as caught:
        bench.loop.run()
    assert caught.value.at_device, "its device may not be waited for"
    bench.close()


def test_a_rank_of_a_group_does_not_return(context: Any) -> None:
    asleep = Asleep()
    bench = Bench(context, asleep)
    bench.loop.register = replace(bench.loop.register, place=GroupPlace("unified-0", 1, 0, 2))
    with pytest.raises(RefusedByGateway, match="was silent for"):
        bench.loop.run()
    assert bench.core.num_resets == 0
    bench.close()


def test_peers_are_heard_once_the_gateway_has_welcomed_the_worker(context: Any) -> None:
    """Before that it does not know whether it has missed a flush."""
    heard: list[bool] = []
    num_turns = 0

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        nonlocal num_turns
        bench.advance_if_member()
        num_turns += 1
        if num_turns == 10:
            bench.send(Welcome(1))
        if heard and any(isinstance(message, Heartbeat) for message in arrived):
            bench.stop()

    bench = Bench(context, play)
    bench.peers.receive = lambda: heard.append(bench.loop._is_member)  # type: ignore[method-assign]
    bench.peers.pollables = lambda: pytest.fail("it waits for peers") if not bench.loop._is_member else ()  # type: ignore[method-assign]
    bench.loop.run()
    assert num_turns > 10 and heard and all(heard)
    bench.close()


def life(
    context: Any, kv_manager: KvManager, known: KnownGateway, welcome: Welcome, flushes: int = 0
) -> tuple[list[CacheNews], int]:
    """What the worker tells of its cache until two heartbeats after it was welcomed and has got `flushes`; and how many
    tokens of the prompt it had cached when it heard its peers first."""
    news: list[CacheNews] = []
    instances: list[int] = []

    def on_beat(bench: Bench, beat: Heartbeat) -> None:
        news.append(beat.cache)
        if len(news) >= 2:
            bench.stop()

    bench = Bench(context, Welcoming(on_beat, welcome, *map(FlushCache, range(flushes))))
    bench.core.kv_manager, bench.loop.around = kv_manager, replace(bench.loop.around, known=known)
    bench.peers.receive = lambda: instances.append(kv_manager.num_cached(PROMPT, has_draft=True))  # type: ignore[method-assign]
    bench.loop.run()
    bench.close()
    return news, instances[0]


@pytest.mark.parametrize("missed", [0, 1])
def test_the_next_life_keeps_the_cache_and_tells_all_of_it_unless_a_flush_was_missed(context: Any, missed: int) -> None:
    kv_manager, known = KvManager(9, 64, max_requests=4, max_context=512, caches=True), KnownGateway()
    life(context, kv_manager, known, Welcome(1, KEY, num_flushes=2), flushes=1)
    keep_cached(kv_manager, PROMPT, 150)
    assert kv_manager.news.take().added, "it was told once"

    news, num_found = life(context, kv_manager, known, Welcome(1, KEY, num_flushes=3 + missed))
    told = [prefix for told_once in news for prefix in told_once.added]
    assert num_found == (0 if missed else 128)
    assert sorted(told) == ([] if missed else sorted(prefix_hashes(KEY, "", IDS)))
    assert any(told_once.flushed for told_once in news) == bool(missed)
    counts = kv_manager.counts()
    assert counts.free + counts.cached == counts.total


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_worker_of_which_a_message_was_lost_or_could_not_be_read_registers_in_another_session(
    context: Any, is_sent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def on_beat(bench: Bench, _beat: Heartbeat) -> None:
        if gateway.num_beats == 1:
            raw = bench.session.seal(b"nonsense")
            assert not is_sent or bench.router.send(IDENTITY, raw)
            assert bench.router.send(IDENTITY, bench.session.tick())
        elif len(gateway.numbers) == 2:
            bench.stop()

    gateway = Welcoming(on_beat)
    bench = Bench(context, gateway).served()
    assert gateway.numbers == [1, 2] and bench.core.num_resets == 0, "it is for the gateway to say what becomes of it"
    assert "the session with the gateway is lost" in caplog.messages


def test_a_second_request_to_register_for_the_same_session_begins_no_other(context: Any) -> None:
    """A new gateway answers each heartbeat that had waited for it."""

    def on_beat(bench: Bench, _beat: Heartbeat) -> None:
        if gateway.num_beats == 1:
            gateway.answers = [Welcome(2)]
            bench.send(RegisterAgain(2))
            bench.send(RegisterAgain(2))
        elif gateway.num_beats > 4 and len(gateway.numbers) > 1:
            bench.stop()

    gateway = Welcoming(on_beat)
    bench = Bench(context, gateway).served()
    assert gateway.numbers == [1, 2] and bench.core.num_resets == 1


def test_a_worker_whose_id_stays_taken_is_given_up(context: Any) -> None:
    """The gateway leaves the first Register of a session unanswered, and asks for another session after the second."""
    numbers: list[int] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        for message in arrived:
            assert isinstance(message, Register)
            if bench.session.number in numbers:
                bench.send(RegisterAgain(1))
            else:
                bench.clock.advance(JOIN_DEADLINE_S / 6)
            numbers.append(bench.session.number)
        if len(numbers) > 30:
            bench.stop()

    bench = Bench(context, play)
    with pytest.raises(Unavailable, match="no gateway has answered"):
        bench.loop.run()
    bench.close()
    assert bench.num_ready == 0 and len(set(numbers)) > 1


def test_a_flush_is_answered_with_its_number_once_the_cache_is_empty(context: Any) -> None:
    answers: list[tuple[ToGateway, int]] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        bench.clock.advance(0.05)
        if any(isinstance(message, Register) for message in arrived):
            bench.send(Welcome(1))
            bench.send(FlushCache(7))
            bench.send(FlushCache(8))
        answers.extend(
            (message, bench.core.kv_manager._flushes) for message in arrived if isinstance(message, CacheFlushed)
        )
        if len(answers) == 2:
            bench.stop()

    bench = Bench(context, play).served()
    assert [answer for answer, _ in answers] == [CacheFlushed(7), CacheFlushed(8)]
    assert bench.core.kv_manager._flushes == 2 and all(num_flushes for _, num_flushes in answers)
