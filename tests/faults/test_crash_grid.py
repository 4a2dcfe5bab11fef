"""A process is killed, asked to end or paused at every moment of a request's life: nobody gets a wrong token.

The affected request ends in time as it may, requests beside it are exact, what died is started again and what was told
to end is not, and then every pair answers exactly, nothing is held, and no process or descriptor is left over. See
grid.py for the cells.
"""

import os
import signal

import pytest

from runtime.clock import MonotonicClock
from tests.faults.arming import Proof
from tests.faults.client import Client
from tests.faults.conftest import Lender
from tests.faults.deployment import RUNNER, SILENCE_S, Deployment, pause, wait_until
from tests.faults.grid import DELIVERED, FAULTS, FEW, LIMIT_S, Cell, all_cells, stretched

PAUSED_S = SILENCE_S + 1.0  # the gateway's and the launcher's pause
PROMPT_LEN = 301
MAX_TOKENS = 40
FEWEST, FEWER = 5, 9  # for `make test`, for both: a worker of each role, the gateway; killed, asked to end, paused
COMPANY_TOKENS = 400  # still decoding when the fault comes

pytestmark = pytest.mark.faults


CELLS = [
    *(pytest.param(cell, marks=pytest.mark.slow, id=str(cell)) for cell in FEW[:FEWEST]),
    *(pytest.param(cell, marks=pytest.mark.broad, id=str(cell)) for cell in FEW[FEWEST:FEWER]),
    *(pytest.param(cell, id=str(cell)) for cell in all_cells() if cell not in FEW[:FEWER]),
]
ALONE = [
    pytest.param(Cell(victim, "kill", phase), id=f"{victim}-{phase.replace(' ', '_')}")
    for victim, phase in (
        ("prefill", "queued"),
        ("prefill", "middle frame"),
        ("prefill", "prebuilt"),
        ("decode", "reserving"),
        ("decode", "middle frame"),
        ("decode", "finishing"),
    )
]
UNIFIED = [
    pytest.param(cell, id=str(cell))
    for phase in ("queued", "prefilling", "decoding", "finishing")
    for cell in (Cell("unified", fault, phase) for fault in FAULTS)
]


@pytest.mark.parametrize("cell", CELLS)
def test_a_fault(cell: Cell, lender: Lender) -> None:
    """Two pairs: what one loses, the other takes over."""
    expect_survival(cell, lender, "2P2D", cell.allowed)


@pytest.mark.parametrize("cell", ALONE)
def test_a_fault_of_the_only_pair(cell: Cell, lender: Lender) -> None:
    """Nobody takes over: the request waits for the restart as long as it may, or ends with a clear error."""
    is_delivered = cell.victim == "prefill" and cell.phase in DELIVERED
    expect_survival(cell, lender, "1P1D", {"exact"} if is_delivered else {"exact", "error"})


@pytest.mark.parametrize("cell", UNIFIED)
def test_a_fault_of_a_unified_worker(cell: Cell, lender: Lender) -> None:
    """The other one takes over."""
    expect_survival(cell, lender, "2U", cell.allowed)


def expect_survival(cell: Cell, lender: Lender, topology: str, allowed: set[str]) -> None:
    """One request and its company through one fault."""
    deployment = lender.borrow(cell.victim, topology)
    url = deployment.baton.url
    pids = deployment.pids()
    company = [Client(url, [5, index, 9], COMPANY_TOKENS).start() for index in range(deployment.num_ways)]
    assert all(client.has_begun() for client in company)
    marker = [3, 1, 4, 1, 5]
    deployment.arm(cell.phase, marker, cell.victim, cell.number)
    client = Client(url, [*marker, *range(PROMPT_LEN - len(marker))], MAX_TOKENS).start()

    proof = deployment.proof(cell.phase)
    assert proof.pid == pids[proof.victim] and proof.victim.startswith(cell.victim)
    deployment.expect_hit(proof, cell.number)
    if cell.fault == "stop":
        wake(deployment, proof)
    assert client.has_ended()
    verdict = client.verdict(RUNNER.expected_tokens)
    took = client.ended_at - proof.at
    assert verdict in allowed, f"{verdict}: {client.error or client.cut}"
    assert took <= stretched(LIMIT_S + (PAUSED_S if cell.fault == "stop" else 0.0)), f"{verdict} after {took:.1f} s"

    assert all(other.has_ended() for other in company)
    assert {other.verdict(RUNNER.expected_tokens) for other in company} <= {"exact", *allowed}
    if cell.ends_all:
        deployment.expect_end(-signal.SIGKILL if cell.fault == "kill" else 0)
    elif cell.leaves:
        deployment.expect_left(proof.victim)
    else:
        deployment.expect_recovery()
        after = deployment.pids()
        changed = {name for name in pids if after[name] != pids[name]}
        assert changed == (set() if cell.fault == "stop" else {proof.victim})
    lender.give_back()


def wake(deployment: Deployment, proof: Proof) -> None:
    """Lets the stopped process go on, once it has been lost (a worker) or after a while."""
    if proof.victim in ("gateway", "launcher"):
        pause(PAUSED_S)
    else:
        baton = deployment.baton
        assert wait_until(lambda: proof.pid not in {row["pid"] for row in baton.workers()}), "never lost"
        assert MonotonicClock().now() - proof.at >= SILENCE_S / 2  # by its silence, not by its end
    os.kill(proof.pid, signal.SIGCONT)
