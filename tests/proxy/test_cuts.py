"""A connection between decode and prefill is cut after each of its first bytes: in the greeting, in a header, in KV, in
a job. Every answer is exact, sooner than by a deadline, and nothing is held.

    data    prefill dials decode: frames there, nothing but ZMQ's own words back
    peer    decode dials prefill: greetings, jobs, credit there; answers back
"""

import random
from collections.abc import Sequence

import pytest

from runtime.clock import MonotonicClock
from tests.faults.deployment import wait_until
from tests.faults.grid import LIMIT_S, stretched
from tests.proxy.conftest import Lend
from tests.proxy.deployment import Proxied, draw_prompts
from tests.proxy.proxy import Cut, Gate, Way

pytestmark = pytest.mark.faults

FIRST_BYTES = range(200)
FEW = (0, 10, 11, 64, 91, 100, 153, 199)  # ends of what ZMQ says first, and beyond
AT_A_TIME = 40  # positions between two looks at the ledger


def expect_exact_after(deployment: Proxied, gate: Gate, cut: Cut, rng: random.Random) -> bool:
    """One cut, and a request to each pair; False if the connection never carries so many bytes that way."""
    clock = MonotonicClock()
    deployment.proxy.cut_next(gate, cut)
    asked = clock.now()
    deployment.expect_exact(draw_prompts(rng, deployment.num_ways, 120), 5)
    assert clock.now() - asked <= stretched(LIMIT_S), cut
    if cut.is_done:
        assert wait_until(lambda: len(gate.flows) > 0), "never dialled again"
        return True
    assert all(flow.num_bytes[cut.way] <= cut.at for flow in gate.flows if flow.cut is cut), cut
    return False


def expect_survival(
    deployment: Proxied, kind: str, way: Way, positions: Sequence[int], rng: random.Random
) -> list[int]:
    """Every position; those that were reached."""
    (gate, *_) = deployment.gates(kind)
    reached = []
    for number, at in enumerate(positions):
        if expect_exact_after(deployment, gate, Cut(way, at, with_reset=bool(rng.randrange(2))), rng):
            reached.append(at)
        if number % AT_A_TIME == AT_A_TIME - 1:
            deployment.expect_rest()
    deployment.clear()
    deployment.expect_rest()
    return reached


@pytest.mark.parametrize(
    "kind, way, positions",
    [
        pytest.param("data", Way.THERE, FEW, marks=pytest.mark.slow, id="data-there-few"),
        pytest.param("peer", Way.BACK, FEW, marks=pytest.mark.slow, id="peer-back-few"),
        pytest.param("data", Way.BACK, FEW, marks=pytest.mark.broad, id="data-back-few"),
        pytest.param("peer", Way.THERE, FEW, marks=pytest.mark.broad, id="peer-there-few"),
        *(pytest.param(kind, way, FIRST_BYTES, id=f"{kind}-{way}-each") for kind in ("data", "peer") for way in Way),
    ],
)
def test_a_cut_after_each_of_the_first_bytes(kind: str, way: Way, positions: Sequence[int], lend: Lend) -> None:
    deployment = lend(2, 2, "zmq")
    retries = deployment.metric("request_retries_total")
    reached = expect_survival(deployment, kind, way, positions, random.Random(f"{kind} {way}"))
    if (kind, way) == ("data", Way.BACK):
        assert len(reached) >= sum(at < 64 for at in positions)  # the greeting and a command, and then no more
    else:
        assert len(reached) == len(positions)
    assert reached == list(positions[: len(reached)])
    if (kind, way) == ("data", Way.THERE):
        assert deployment.metric("request_retries_total") > retries, "frames were lost, and nobody noticed"


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_further_on(seed: int, lend: Lend) -> None:
    """In the middle of frames, between two prompts."""
    deployment, rng = lend(2, 2, "zmq"), random.Random(seed)
    positions = [rng.randrange(200, 5_000) for _ in range(20)]
    assert len(expect_survival(deployment, "data", Way.THERE, positions, rng)) > 3


def test_headers_of_what_is_written_in_place_are_cut(lend: Lend) -> None:
    deployment, rng = lend(2, 2, "shm"), random.Random(1)
    assert len(expect_survival(deployment, "data", Way.THERE, range(0, 200, 7), rng)) == 29


def test_the_only_pair(lend: Lend) -> None:
    """Nobody else takes over: the same two do it again."""
    deployment, rng = lend(1, 1, "zmq"), random.Random(1)
    assert len(expect_survival(deployment, "data", Way.THERE, range(90, 200, 9), rng)) == 13
    assert len(expect_survival(deployment, "peer", Way.THERE, range(90, 200, 9), rng)) == 13
