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
from tests.proxy.deployment import POOL_TOKENS, SMALL, Proxied
from tests.proxy.faults import Holds
from tests.proxy.proxy import Gate, Way, unchanged

pytestmark = pytest.mark.faults

PATIENT = f"{SMALL} --silence-limit 10 --retry-wait 60"  # only the worker that sleeps is to be lost
PROMPT = list(range(POOL_TOKENS * 6 // 10))  # two of them have pages in common, because both do not fit
MAX_TOKENS = 150


def hold_frames(deployment: Proxied, client: Client) -> tuple[Gate, Holds]:
    """The client's frames, after the first one, are kept back on their way; by which gate."""
    holds = {gate: Holds(pass_first=1) for gate in deployment.gates("data")}
    for gate, hold in holds.items():
        deployment.proxy.tamper(gate, Way.THERE, hold)
    client.start()
    assert wait_until(lambda: any(hold.kept for hold in holds.values()))
    holding = next(gate for gate, hold in holds.items() if hold.kept)
    for gate in holds:
        if gate is not holding:
            deployment.proxy.tamper(gate, Way.THERE, unchanged)
    return holding, holds[holding]


@contextmanager
def asleep(deployment: Proxied, pid: int, at_once: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Within, the worker is stopped, and lost; it wakes at the end. `at_once` is done before it is lost."""
    os.kill(pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: state_of(pid) in "Tt")
        at_once()
        assert wait_until(lambda: pid not in {worker["pid"] for worker in deployment.baton.workers()}), "never lost"
        yield
        assert state_of(pid) in "Tt", "it was to sleep until now"
    finally:
        os.kill(pid, signal.SIGCONT)


def decodes(client: Client) -> bool:
    """Whether tokens come of decode, too: its KV was delivered."""
    return wait_until(lambda: len(client.tokens.get(0, ())) > 2)


@pytest.mark.parametrize("num_decode", [pytest.param(2, marks=pytest.mark.full), 1])
def test_a_prefill_worker_that_wakes(num_decode: int, lend: Lend) -> None:
    """Its frames come to a decode worker that has given their pages to others."""
    deployment = lend(2, num_decode, "zmq", PATIENT)
    deployment.settle()
    before, unknown = deployment.rejected(), deployment.rejected("unknown_reservation")
    first = Client(deployment.baton.url, PROMPT, MAX_TOKENS)
    gate, holds = hold_frames(deployment, first)
    (pid,) = [worker["pid"] for worker in deployment.baton.workers() if int(worker["instance"]) == holds.sender]
    with asleep(deployment, pid):
        assert decodes(first), "no other worker took over"
        assert deployment.proxy.inject(gate, Way.THERE, holds.kept) == len(holds.kept)
        assert deployment.verdicts([first]) == ["exact"]
        assert wait_until(lambda: deployment.rejected("unknown_reservation") - unknown == len(holds.kept))
        others = deployment.start([PROMPT[::-1]] * num_decode, MAX_TOKENS)  # in the same pages once more
        assert all(map(decodes, others))
        holds.lets_go = True
    assert set(deployment.verdicts(others)) == {"exact"}
    assert deployment.is_whole(2 + num_decode) and holds.sender not in instances_of(deployment, pid), (
        "it may not return as who it was"
    )
    deployment.settle()
    assert deployment.rejected() - before == len(holds.kept) + holds.num_late
    deployment.expect_exact([PROMPT, PROMPT[::-1]], 9)


def test_a_decode_worker_that_wakes(lend: Lend) -> None:
    """Its frames come when it counts no more; what it says is dropped. Then they come to the instance that follows it,
    as to one that has got its port."""
    deployment = lend(1, 2, "zmq", PATIENT)
    first = Client(deployment.baton.url, PROMPT, MAX_TOKENS)
    gate, holds = hold_frames(deployment, first)
    ((pid, instance),) = [
        (worker["pid"], int(worker["instance"]))
        for worker in deployment.baton.workers()
        if f"data {worker['id']}" == gate.name
    ]

    def let_go() -> None:
        deployment.clear()
        assert deployment.proxy.inject(gate, Way.THERE, holds.kept) == len(holds.kept)

    before = dropped(deployment)
    with asleep(deployment, pid, let_go):
        assert deployment.verdicts([first]) == ["exact"]
        (second,) = deployment.start([PROMPT[::-1]], MAX_TOKENS)  # in the same pages of the prefill worker
        assert decodes(second)
    assert deployment.verdicts([second]) == ["exact"]
    assert deployment.is_whole(3) and instance not in instances_of(deployment, pid), "it may not return as who it was"
    assert dropped(deployment) > before
    deployment.expect_exact([PROMPT[:60]] * 4, 9)
    deployment.settle()
    before = deployment.rejected("unknown_reservation")
    assert deployment.proxy.inject(deployment.proxy.gate(gate.name), Way.THERE, holds.kept) == len(holds.kept)
    deployment.expect_exact([PROMPT[:60]] * 4, 9)
    assert wait_until(lambda: deployment.rejected("unknown_reservation") - before == len(holds.kept))
    deployment.expect_rest()


def instances_of(deployment: Proxied, pid: int) -> list[int]:
    """As which instance the process is a member; there must be one."""
    numbers = [int(worker["instance"]) for worker in deployment.baton.workers() if worker["pid"] == pid]
    assert numbers, "it has not returned"
    return numbers


def dropped(deployment: Proxied) -> float:
    """What workers that count no more have said to the gateway."""
    return deployment.metric("messages_refused_total") + deployment.metric("deliveries_dropped_total")
