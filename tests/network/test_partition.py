"""Two workers cannot reach each other for a while. Then they can, and the one that was away gets its share again."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.bus import SILENT_MS
from tests.faults.deployment import pause
from tests.network.conftest import Serve, Served

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
SHORT_S, LONG_S = 3.0, SILENT_MS / 1000 + 5  # when the long one ends, both have given their connections up
PREFILLS = ("prefill-0", "prefill-1")


@pytest.fixture(scope="module")
def served(serve: Serve) -> Served:
    return serve(*PREFILLS, "decode")


@pytest.mark.parametrize("seconds", [pytest.param(SHORT_S, marks=pytest.mark.slow, id="short"), LONG_S])
def test_after_a_partition_between_workers_the_peer_carries_its_share(served: Served, seconds: float) -> None:
    answers = {served.answer() for _ in PREFILLS}
    served.hosts.part("prefill-1", "decode")
    with ThreadPoolExecutor(4) as clients:
        parted = [clients.submit(served.answer) for _ in range(4)]
        pause(seconds)
        served.hosts.heal()
        answers |= {request.result() for request in parted}
    assert len(answers) == 1

    num_retries = served.num_retries()
    computed = Counter(served.computed_by() for _ in range(8))
    assert computed == dict.fromkeys(PREFILLS, 4), "they take turns"
    assert served.num_retries() == num_retries, "the peer that was away is there for the first attempt"
