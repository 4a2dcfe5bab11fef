"""A worker whose every forward raises ends by itself and is started again; its clients notice nothing."""

import json

import pytest

from tests.faults.client import Client
from tests.faults.conftest import Lender
from tests.faults.deployment import RUNNER, wait_until

pytestmark = pytest.mark.slow
NUM_TOKENS = 12


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_cannot_compute_is_replaced_and_every_answer_is_exact(lender: Lender, role: str) -> None:
    deployment, victim = lender.borrow(role), f"{role}-0"
    pid = deployment.pids()[victim]
    for path in deployment.faults.iterdir():
        path.unlink()
    (deployment.faults / "part").write_text(json.dumps(pid))
    (deployment.faults / "part").rename(deployment.faults / "broken.json")

    # One request after the other, until the worker has failed three that have nothing in common.
    clients: list[Client] = []

    def has_ended_by_itself() -> bool:
        clients.append(Client(deployment.baton.url, [9, len(clients), *range(30)], NUM_TOKENS).start())
        assert clients[-1].has_ended()
        return deployment.pids().get(victim) != pid

    assert wait_until(has_ended_by_itself), deployment.baton.log_text()[-3000:]
    raised = (deployment.faults / "raised").read_text().split()
    assert len(raised) >= 3 and set(raised) == {str(pid)}, "the hook has not raised in the worker that ended"
    verdicts = [client.verdict(RUNNER.expected_tokens) for client in clients]
    assert set(verdicts) == {"exact"}, [client.error for client in clients]

    # It said why, ended with its own status, and serves again.
    log = deployment.baton.log_text()
    assert "every launch fails" in log and "3 launches in a row have failed without a request in common" in log
    assert wait_until(lambda: f"{victim} ended with exit status 4" in deployment.baton.log_text())
    deployment.num_hits[victim.split("-", maxsplit=1)[0]] = (
        deployment.num_hits.get(victim.split("-", maxsplit=1)[0], 0) + 1
    )
    deployment.expect_recovery()
    lender.give_back()
