"""Messages that come twice, at once or after others: no page is written a second time, and every answer is exact."""

import random

import pytest

from tests.proxy.conftest import Lend
from tests.proxy.deployment import Proxied, draw_prompts
from tests.proxy.faults import Doubles, Wanted, is_frame, is_kv, is_last
from tests.proxy.proxy import Way

pytestmark = pytest.mark.faults


def double_all(deployment: Proxied, kind: str, way: Way, wanted: Wanted, later: int) -> list[Doubles]:
    doubles = []
    for gate in deployment.gates(kind):
        doubles.append(Doubles(wanted, later))
        deployment.proxy.tamper(gate, way, doubles[-1])
    return doubles


@pytest.mark.parametrize(
    "backend, later, wanted",
    [
        pytest.param("zmq", 0, is_frame, marks=pytest.mark.slow),
        *(("zmq", later, wanted) for later in (0, 3, 8) for wanted in (is_kv, is_last)),
        *(("shm", later, wanted) for later in (0, 3) for wanted in (is_kv, is_last, is_frame)),
    ],
)
def test_frames_that_come_twice(backend: str, later: int, wanted: Wanted, lend: Lend) -> None:
    """Each repeat is refused and counted, nothing else is, and no request needs a second attempt."""
    deployment, rng = lend(2, 2, backend), random.Random(later)
    deployment.settle()
    before, tries = deployment.rejected(), deployment.metric("request_retries_total")
    doubles = double_all(deployment, "data", Way.THERE, wanted, later)
    for _ in range(3):
        deployment.expect_exact(draw_prompts(rng, 8), 9)
        deployment.expect_rest()
    deployment.settle()
    assert all(double.num_doubled > 0 for double in doubles)
    num_doubled = sum(double.num_doubled for double in doubles)
    counted = deployment.rejected() - before, deployment.metric("request_retries_total") - tries
    assert counted == (num_doubled, 0), deployment.baton.log_text()[-3000:]


@pytest.mark.parametrize("backend", [pytest.param("zmq", marks=pytest.mark.slow), "shm"])
@pytest.mark.parametrize("way", Way)
def test_messages_between_decode_and_prefill_that_come_twice(backend: str, way: Way, lend: Lend) -> None:
    """Jobs, credit, acknowledgements; and what prefill says of jobs."""
    deployment, rng = lend(2, 2, backend), random.Random(1)
    tries = deployment.metric("request_retries_total")
    doubles = double_all(deployment, "peer", way, lambda _: True, 0)
    for _ in range(3):
        deployment.expect_exact(draw_prompts(rng, 8), 9)
        deployment.expect_rest()
    assert all(double.num_doubled > 3 for double in doubles)
    assert deployment.metric("request_retries_total") == tries
