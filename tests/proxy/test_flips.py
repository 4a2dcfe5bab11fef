"""One bit is turned in frames on their way from prefill to decode: each is found, and no client gets a wrong token."""

import random
from collections import Counter

import pytest

from protocol.frame import HEADER_BYTES
from tests.faults.grid import stretched
from tests.proxy.conftest import Lend
from tests.proxy.deployment import Proxied, draw_prompts
from tests.proxy.faults import Flips
from tests.proxy.proxy import Way

pytestmark = pytest.mark.faults

WHOSE = (
    *range(6),
    *range(8, 28),
)  # of a header, they say whose the frame is: magic, version, sender, reservation, attempt
WHAT = tuple(index for index in range(HEADER_BYTES) if index not in WHOSE)
DAMAGE = ("malformed", "size", "check_kind", "checksum")
TOGETHER = 8  # requests at a time
STALL_S = 4.0  # without a word, after which the clients of the second test leave; longer beside other load


def turn_bits(deployment: Proxied, flips: Flips) -> None:
    for gate in deployment.gates("data"):
        deployment.proxy.tamper(gate, Way.THERE, flips)


@pytest.mark.parametrize(
    "seed, num_rounds", [pytest.param(1, 6, marks=pytest.mark.slow), *((seed, 20) for seed in range(2, 6))]
)
def test_every_turned_bit_is_found(seed: int, num_rounds: int, lend: Lend) -> None:
    """The request is tried again, and fails clearly where that is in vain three times."""
    deployment, rng = lend(2, 2, "zmq"), random.Random(seed)
    deployment.settle()
    before = deployment.rejected(*DAMAGE)
    flips = Flips(rng, 0.08, WHAT)
    turn_bits(deployment, flips)
    verdicts: Counter[str] = Counter()
    for number in range(4 * num_rounds):
        kinds = flips.kinds
        is_enough = all(kinds[kind] for kind in ("header", "KV", "last message")) and kinds.total() > 4 * num_rounds
        if number >= num_rounds and is_enough:
            break  # which frames are hit depends on the order in which they leave
        clients = deployment.start(draw_prompts(rng, TOGETHER), 9)
        verdicts.update(deployment.verdicts(clients))
        assert {client.error["code"] for client in clients if client.error} <= {"kv_not_delivered"}
    deployment.settle()
    kinds = flips.kinds
    story = f"seed {seed}: turned {dict(kinds)}, ended {dict(verdicts)}"
    assert min(kinds["header"], kinds["KV"], kinds["last message"]) > 0 and kinds.total() > 4 * num_rounds, story
    assert deployment.rejected(*DAMAGE) - before == kinds.total(), story
    assert verdicts["exact"] > verdicts["error"] and set(verdicts) <= {"exact", "error"}, story
    deployment.expect_exact(draw_prompts(rng, 4), 9)


@pytest.mark.parametrize(
    "backend, seed", [pytest.param("zmq", 1, marks=pytest.mark.full), *(("shm", seed) for seed in range(2, 5))]
)
def test_a_frame_that_no_longer_says_whose_it_is(backend: str, seed: int, lend: Lend) -> None:
    """It is refused and counted. That it is missing shows with the last frame, or soon after that was due, so that its
    request is tried again; where several are damaged, the last among them, it may wait, and its client leaves. Of KV
    written in place only headers are on the way: one that names another layer is refused as a repeat."""
    deployment, rng = lend(2, 2, backend), random.Random(seed)
    deployment.settle()
    before, tries = deployment.rejected(), deployment.metric("request_retries_total")
    flips = Flips(rng, 0.15, WHOSE if backend == "zmq" else range(HEADER_BYTES), share=1.0)
    turn_bits(deployment, flips)
    verdicts: Counter[str] = Counter()
    for _ in range(3):
        clients = deployment.start(draw_prompts(rng, TOGETHER), 9, stretched(STALL_S))
        verdicts.update(deployment.verdicts(clients))
    deployment.settle()
    kinds = flips.kinds
    story = f"seed {seed}: turned {dict(kinds)}, ended {dict(verdicts)}"
    assert kinds["header"] > 8, story
    assert deployment.rejected() - before >= kinds.total(), story
    assert deployment.metric("request_retries_total") > tries, story
    assert verdicts["exact"] > verdicts["cut"] and set(verdicts) <= {"exact", "error", "cut"}, story
    deployment.expect_exact(draw_prompts(rng, 4), 9)
