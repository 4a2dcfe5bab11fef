"""Requests that come while a worker of their role is lost: they wait for it as long as those that it had."""

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.words.prompt import Prompt
from protocol.errors import Unavailable
from protocol.messages_gateway import Assign, Leaving, Left, Role
from runtime.settings import GatewaySettings, HttpLimits
from runtime.supervision import STATES, UnitNews, UnitState
from tests.gateway.client import Client
from tests.gateway.conftest import running, wait_until
from tests.gateway.control_bench import PROMPT, ControlBench

WAIT_S = 4.0  # of a ControlBench


def ask(bench: ControlBench, name: str, n: int = 1) -> Client:
    """A client asks; no worker need get the request."""
    client = Client(n)
    bench.dispatch.assign(name, Prompt(PROMPT, bench.sampling, n), client)
    return client


def pair() -> ControlBench:
    bench = ControlBench()
    bench.join("p", Role.PREFILL)
    bench.join("d", Role.DECODE)
    return bench


@pytest.mark.parametrize("after_s", [0.0, 1.0, WAIT_S - 0.1])
def test_a_new_request_waits_for_a_lost_worker_and_is_no_retry(
    after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "baton")
    bench = ControlBench("u0")
    bench.lose("u0")
    bench.clock.advance(after_s)
    client = ask(bench, "r", n=2)
    assert client.error is None and not bench.assigns
    assert bench.dispatch.requests.num_choices == 2, "it counts as in flight"

    bench.join("u1")
    [assign] = bench.assigns
    assert (assign.request_id, assign.attempt, assign.num_choices, assign.num_replayed) == ("r", 0, 2, 0)
    for choice in range(2):
        bench.tokens(assign, choice, 0, 5, 6, by="u1", finish="stop")
    assert client.tokens == [[5, 6], [5, 6]]
    assert not any(bench.dispatch.retries.counts.values())
    assert "request has waited" in caplog.messages and "request retried" not in caplog.messages
    bench.expect_rest()


@pytest.mark.parametrize("lost", ["p", "d"])
def test_it_waits_for_either_role_of_a_pair(lost: str) -> None:
    bench = pair()
    bench.lose(lost)
    client = ask(bench, "r")
    bench.control.look()
    assert client.error is None and not bench.assigns
    bench.join("again", Role.PREFILL if lost == "p" else Role.DECODE)
    assert [assign.request_id for assign in bench.assigns] == ["r"] and client.error is None


def test_those_that_the_worker_had_come_first_then_new_ones_as_they_came() -> None:
    bench = ControlBench("u0")
    bench.ask("old")
    bench.lose("u0")
    for name in ("first", "second", "third"):
        ask(bench, name)
    bench.join("u1")
    assert [assign.request_id for assign in bench.assigns[1:]] == ["old", "first", "second", "third"]


def test_all_that_wait_fail_together_and_later_ones_at_once() -> None:
    """The time counts from when the worker was last heard, so nobody waits longer than those that it had."""
    bench = ControlBench("u0")
    old, _ = bench.ask("old")
    bench.lose("u0")
    bench.clock.advance(WAIT_S - 1.0)
    new = ask(bench, "new")
    bench.clock.advance(0.9)
    bench.control.look()
    assert old.error is None and new.error is None

    bench.clock.advance(0.2)
    bench.control.look()
    assert old.error is not None and old.error.code == "worker_lost"
    assert type(new.error) is Unavailable
    assert new.error.message == "no worker is ready, and no other worker could take over in 4 s"
    with pytest.raises(Unavailable, match=r"^no worker is ready$"):
        ask(bench, "late")
    bench.expect_rest()


def test_it_waits_for_no_worker_that_has_left_or_was_never_there() -> None:
    bench = ControlBench()
    with pytest.raises(Unavailable, match=r"^no worker is ready yet$"):
        ask(bench, "r")
    bench.join("u0")
    bench.say("u0", Leaving("u0", 1))
    bench.say("u0", Left("u0", 1))
    assert bench.control.membership.num_left == 1
    with pytest.raises(Unavailable, match=r"^no worker is ready$"):
        ask(bench, "r")
    bench.expect_rest()


@pytest.mark.parametrize("state", STATES)
def test_it_does_not_wait_for_what_the_launcher_has_given_up(state: UnitState) -> None:
    bench = pair()
    bench.control.presence.heard(UnitNews("p", Role.PREFILL, "running", 0.0))
    bench.control.presence.heard(UnitNews("d", Role.DECODE, state, 0.0))
    bench.lose("d")
    if state in ("given up", "left"):
        with pytest.raises(Unavailable, match=r"^no decode worker is ready$"):
            ask(bench, "r")
        bench.control.presence.heard(UnitNews("d1", Role.DECODE, "starting", 0.0))
    assert ask(bench, "r").error is None, "another one may come"


@pytest.mark.parametrize("choice", [-1, 0])
def test_a_client_that_leaves_waits_no_longer(choice: int) -> None:
    bench = ControlBench("u0")
    bench.lose("u0")
    ask(bench, "r")
    bench.dispatch.cancel("r", choice)
    bench.join("u1")
    assert not [message for _, message in bench.sent if isinstance(message, Assign)]
    bench.expect_rest()


def test_a_gateway_that_stops_fails_what_waits() -> None:
    bench = ControlBench("u0")
    bench.lose("u0")
    client = ask(bench, "r")
    bench.dispatch.stop("the gateway is stopping")
    assert client.error is not None and client.error.message == "the gateway is stopping"
    bench.control.look()
    bench.expect_rest()


async def test_what_waits_is_bounded_by_the_choices_in_flight(folder: Path) -> None:
    async with running(folder, retry_wait_s=600.0, limits=HttpLimits(max_choices_in_flight=3)) as setting:
        control = setting.gateway.control
        await (await setting.add(Role.UNIFIED, "u0")).stop()
        await wait_until(lambda: control.membership.missing is not None)
        waiting = [asyncio.create_task(setting.complete("hello", max_tokens=3)) for _ in range(3)]
        await wait_until(lambda: control.dispatch.requests.num_choices == 3)
        assert (await setting.complete("hello")).status_code == 429
        health = await setting.client.get("/health")
        assert health.status_code == 503, "load balancers are told at once"

        await setting.add(Role.UNIFIED, "u1")
        assert [(await each).status_code for each in waiting] == [200] * 3
        assert control.dispatch.requests.num_choices == 0


def test_the_wait_is_longer_than_a_restart_and_shorter_than_proxies_wait() -> None:
    assert 15 <= GatewaySettings.retry_wait_s <= 45
