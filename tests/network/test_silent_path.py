"""A firewall forgets connections: from then on it swallows what comes, and tells nobody. Baton notices it by itself, so
that the next request finds another connection."""

import pytest

from tests.network.conftest import Serve, Served
from tests.selecting import broad

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def pair(serve: Serve) -> Served:
    return serve("prefill", "decode")


@pytest.mark.parametrize("which", ["data", broad("both")])
def test_a_path_between_workers_that_drops_silently_costs_the_next_request_nothing(pair: Served, which: str) -> None:
    answer, num_retries = pair.answer(), pair.num_retries()
    flows = pair.hosts.flows("prefill", "decode")
    data = {flow for flow in flows if flow.dialler == "prefill"}
    assert len(data) == 1 and len(flows) == 2

    dropped = data if which == "data" else flows
    sessions = pair.log("decode").count("session lost")
    for flow in dropped:
        pair.hosts.drop(flow)
    assert pair.gateway.wait_until(lambda: not dropped & pair.hosts.flows("prefill", "decode")), "nobody notices it"
    if which == "both":  # the decode worker has dialled again, and greets
        assert pair.gateway.wait_until(lambda: pair.log("decode").count("session lost") > sessions)

    assert pair.answer() == answer
    assert pair.num_retries() == num_retries, "the request met a connection that was gone"


def test_workers_whose_path_to_the_gateway_drops_silently_come_back_by_themselves(pair: Served) -> None:
    answer, num_retries = pair.answer(), pair.num_retries()
    pids = {name: pair.gateway.worker(name).pid for name in ("prefill", "decode")}
    instances = {name: pair.gateway.instance(name) for name in pids}
    for name in pids:
        (flow,) = pair.hosts.flows(name, "here")
        pair.hosts.drop(flow)
    assert all(pair.gateway.wait_for_instance(name, instance) for name, instance in instances.items())
    assert {name: pair.gateway.worker(name).pid for name in pids} == pids, "a process was started again"
    assert pair.answer() == answer
    assert pair.num_retries() == num_retries
