"""A worker loop that is told to end: what it says to the gateway and to its launcher, and when it ends."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import GroupBroken
from protocol.messages_gateway import (
    CacheFlushed,
    DeclaredLost,
    Heartbeat,
    Leave,
    Leaving,
    Left,
    Refused,
    RegisterAgain,
    ToGateway,
)
from tests.worker.conftest import STATS, Bench, Welcoming
from worker.departure import Departure
from worker.gateway_link import JOIN_DEADLINE_S
from worker.parts import WorkerBroken

BOUND_S = 1e6  # moments of real time, such as a message takes, are long on the clock of these tests


class Told(Welcoming):
    """The worker is told to end at its first heartbeat; then `after` decides, and no Register is answered."""

    def __init__(self) -> None:
        super().__init__(self.tell)
        self.turns_after = 0
        self.told_at = 0.0  # when the signal came

    def __call__(self, bench: Bench, arrived: list[ToGateway]) -> None:
        assert bench.clock.now() < BOUND_S, "it never ends"
        super().__call__(bench, arrived)
        if self.said(Leaving):
            self.turns_after += 1
            self.after(bench)

    def tell(self, bench: Bench, _beat: Heartbeat) -> None:
        if bench._stop.count == 0:
            self.told_at, self.answers = bench.clock.now(), []
            bench.stop()

    def after(self, bench: Bench) -> None:
        """Called at every turn from Leaving on."""

    def said(self, kind: type) -> list[ToGateway]:
        return [message for message in self.seen if isinstance(message, kind)]


def run(
    context: Any, told: Told, running: int = 0, waiting: int = 0, bound_s: float = BOUND_S, hears_end: bool = True
) -> tuple[Bench, list[tuple[int, float]]]:
    bench, events = Bench(context, told), list[tuple[int, float]]()
    bench.core.stats = lambda: replace(STATS, running=running, waiting=waiting)  # type: ignore[method-assign]
    bench.loop.departure = Departure(bound_s)
    bench.status.leaving = lambda num_requests, bound_s: events.append((num_requests, bound_s))  # type: ignore[method-assign]
    bench.loop.run()
    while hears_end and not told.said(Left):
        assert bench.router.socket.poll(60_000)
        told.seen += bench.heard()
    bench.close()
    return bench, events


def test_it_says_that_it_leaves_and_goes_on_until_the_gateway_lets_it_go(context: Any) -> None:
    class Gateway(Told):
        def after(self, bench: Bench) -> None:
            if self.turns_after == 20:
                bench.send(Leave())

    told = Gateway()
    bench, events = run(context, told, running=3, waiting=1)
    assert events == [(4, BOUND_S)]
    assert told.said(Leaving) == [Leaving("unified-0", 5)] and told.seen[-1] == Left("unified-0", 5)
    between = told.seen[told.seen.index(Leaving("unified-0", 5)) :]
    assert len([message for message in between if isinstance(message, Heartbeat)]) >= 10, "it is alive all the time"
    assert bench.clock.now() < BOUND_S


def test_it_ends_when_its_memory_is_not_in_use_any_more(context: Any) -> None:
    class Gateway(Told):
        held: Any = None

        def after(self, bench: Bench) -> None:
            if self.turns_after == 1:
                bench.core.busy = True
                bench.send(Leave())
            elif self.turns_after == 20:
                assert not self.said(Left), "a launch is in flight"
                bench.core.busy = False

    told = Gateway()
    run(context, told)
    assert told.turns_after >= 20 and told.seen[-1] == Left("unified-0", 5)


def test_its_bound_ends_it(context: Any) -> None:
    told = Told()
    bench, _ = run(context, told, running=1, bound_s=30.0)
    assert 30.0 <= bench.clock.now() - told.told_at < 31.0
    assert told.seen[-1] == Left("unified-0", 5)


@pytest.mark.parametrize(
    "message",
    [Refused("its group has left"), DeclaredLost("it was silent"), RegisterAgain(1), RegisterAgain(2)],
    ids=str,
)
def test_it_ends_in_good_order_when_the_gateway_does_not_know_it_any_more(
    context: Any, message: Refused | DeclaredLost | RegisterAgain
) -> None:
    class Gateway(Told):
        def after(self, bench: Bench) -> None:
            if self.turns_after == 2:
                bench.clock.advance(2 * JOIN_DEADLINE_S)  # it has served for long
                bench.send(message)

    told = Gateway()
    bench, _ = run(context, told, running=1, hears_end=False)
    assert bench.clock.now() < BOUND_S


def test_what_breaks_while_it_leaves_does_not_say_that_it_has_left(context: Any) -> None:
    class Gateway(Told):
        bench: Bench

        def after(self, bench: Bench) -> None:
            self.bench = bench
            bench.core.turn = break_group  # type: ignore[method-assign]

    def break_group() -> bool:
        raise GroupBroken("rank 1 has gone")

    told = Gateway()
    with pytest.raises(WorkerBroken, match="rank 1 has gone"):
        run(context, told, hears_end=False)
    told.bench.loop.gateway.send(CacheFlushed(7))  # comes behind all that it has said
    while not told.said(CacheFlushed):
        assert told.bench.router.socket.poll(60_000)
        told.seen += told.bench.heard()
    told.bench.close()
    assert told.said(Leaving) and not told.said(Left)


def test_a_gateway_that_is_gone_is_not_waited_for(context: Any) -> None:
    class Gateway(Told):
        def after(self, bench: Bench) -> None:
            if self.turns_after == 2:
                bench.router.close()
                bench.router.receive = list  # type: ignore[method-assign]

    told = Gateway()
    bench, _ = run(context, told, running=1, hears_end=False)
    assert bench.clock.now() < BOUND_S
