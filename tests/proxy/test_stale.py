"""A worker sleeps for longer than it may, its requests are served by others in the pages that were meant for it, and
then it wakes: what it sent before, and sends now, is refused and counted, and no token is wrong."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.client import Client
from tests.faults.deployment import state_of, wait_until
from tests.proxy.conftest import Lend
from tests.proxy.deployment import Proxied
from tests.proxy.faults import Holds
from tests.proxy.proxy import Way

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

# One prompt takes more than half of a pool, so two have pages in common.
FLAGS = ("--transfer-backend", "zmq", "--page-size", "4", "--max-total-tokens", "480", "--hang-limit", "0")
PROMPT = list(range(300))
MAX_TOKENS = 150


def hold_frames(deployment: Proxied) -> Holds:
    """Frames of one prefill worker, the first one that sends, are kept back on their way to any decode worker."""
    holds = Holds(pass_first=1)
    for gate in deployment.gates("data"):
        deployment.proxy.tamper(gate, Way.THERE, holds)
    return holds


@contextmanager
def asleep(deployment: Proxied, pid: int, at_once: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Within, the worker is stopped, and lost; it wakes at the end. `at_once` is done before it is lost."""
    os.kill(pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: state_of(pid) in "Tt")
        at_once()
        assert wait_until(lambda: pid not in {each["pid"] for each in deployment.baton.workers()}), "never lost"
        yield
        assert state_of(pid) in "Tt", "it was to sleep until now"
    finally:
        os.kill(pid, signal.SIGCONT)


def decodes(client: Client) -> bool:
    """Whether tokens come of decode, too: its KV was delivered."""
    return wait_until(lambda: len(client.tokens.get(0, ())) > 2)


@pytest.mark.slow
def test_a_prefill_worker_that_wakes(lend: Lend) -> None:
    """Its frames come to a decode worker that has given their pages to others."""
    deployment = lend(2, 1, *FLAGS)
    before = deployment.rejected()
    holds = hold_frames(deployment)
    (first,) = deployment.start([PROMPT], MAX_TOKENS)
    assert wait_until(lambda: len(holds.kept) > 0)
    (pid,) = [each["pid"] for each in deployment.baton.workers() if int(each["instance"]) == holds.sender]
    with asleep(deployment, pid):
        assert decodes(first), "no other worker took over"
        assert deployment.proxy.inject(deployment.gates("data")[0], Way.THERE, holds.kept) == len(holds.kept)
        assert deployment.verdicts([first]) == ["exact"]
        assert wait_until(lambda: deployment.rejected("unknown_reservation") - before == len(holds.kept))
        (second,) = deployment.start([PROMPT[::-1]], MAX_TOKENS)  # in the same pages once more
        assert decodes(second)
        holds.lets_go = True
    assert deployment.verdicts([second]) == ["exact"]
    assert deployment.is_whole(3) and wait_until(lambda: state_of(pid) in "XZ"), "it may not return as who it was"
    deployment.expect_rest()
    assert deployment.rejected() - before == len(holds.kept) + holds.num_late
    deployment.clear()
    deployment.expect_exact([PROMPT, PROMPT[::-1]], 9)


@pytest.mark.slow
def test_a_decode_worker_that_wakes(lend: Lend) -> None:
    """Its frames come when it counts no more; what it says is dropped. Then they come to the process that follows it,
    as to one that has got its port."""
    deployment = lend(1, 2, *FLAGS)
    holds = hold_frames(deployment)
    (first,) = deployment.start([PROMPT], MAX_TOKENS)
    assert wait_until(lambda: len(holds.kept) > 0)
    (gate,) = [each for each in deployment.gates("data") if sum(each.num_messages.values())]
    (pid,) = [each["pid"] for each in deployment.baton.workers() if f"data {each['id']}" == gate.name]

    def let_go() -> None:
        deployment.clear()
        assert deployment.proxy.inject(gate, Way.THERE, holds.kept) == len(holds.kept)

    before = dropped(deployment)
    with asleep(deployment, pid, let_go):
        assert deployment.verdicts([first]) == ["exact"]
        (second,) = deployment.start([PROMPT[::-1]], MAX_TOKENS)  # in the same pages of the prefill worker
        assert decodes(second)
    assert deployment.verdicts([second]) == ["exact"]
    assert deployment.is_whole(3) and wait_until(lambda: state_of(pid) in "XZ"), "it may not return as who it was"
    assert dropped(deployment) > before
    deployment.expect_exact([PROMPT[:60]] * 4, 9)
    before = deployment.rejected()
    assert deployment.proxy.inject(deployment.proxy.gate(gate.name), Way.THERE, holds.kept) == len(holds.kept)
    deployment.expect_exact([PROMPT[:60]] * 4, 9)
    assert wait_until(lambda: deployment.rejected("unknown_reservation") - before == len(holds.kept))
    deployment.expect_rest()


def dropped(deployment: Proxied) -> float:
    """What workers that count no more have said to the gateway."""
    return deployment.metric("messages_refused_total") + deployment.metric("deliveries_dropped_total")
