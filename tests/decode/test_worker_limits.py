"""Tight pools of pages and rows, and job credit: everybody is served in the end, nobody holds more than their share."""

import pytest

from protocol.messages_gateway import Assign
from tests.cluster import Cluster
from tests.decode.driving import (
    VOCAB,
    Phase,
    Recorder,
    decode_phase,
    drive_to,
    expect_exact,
    expect_rest,
    greedy,
    make_cluster,
    phase_of,
    prompt_of,
)
from worker.policies import Policies

PARAMS = greedy(6)


def assign_many(cluster: Cluster, lengths: dict[str, int], n: int = 1) -> None:
    for name, length in lengths.items():
        cluster.assign(name, prompt_of(name, length), PARAMS, n)


def expect_all(cluster: Cluster, lengths: dict[str, int], n: int = 1) -> None:
    for name, length in lengths.items():
        expect_exact(cluster, name, prompt_of(name, length), PARAMS, n)
    assert not cluster.failures
    expect_rest(cluster)


@pytest.mark.parametrize("topology", ["1P1D", "1P2D", "1U"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_pool_that_fits_one_request_serves_many(topology: str, overlap: bool) -> None:
    # 20 + 6 - 1 tokens in pages of 4: 7 pages, and the padding.
    cluster = make_cluster(topology, num_pages=8, overlap=overlap)
    lengths = {f"r{index}": 20 for index in range(6)}
    assign_many(cluster, lengths)
    cluster.run()
    expect_all(cluster, lengths)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_a_big_request_is_not_starved_by_small_ones(topology: str) -> None:
    cluster = make_cluster(topology, num_pages=16)
    record = Recorder(cluster)
    lengths = {"s0": 4, "s1": 4, "big": 50, **{f"t{index}": 4 for index in range(8)}}
    assign_many(cluster, lengths)
    cluster.run()
    order = [name for _, name, _, seq in record.pieces if seq == 0]
    assert order.index("big") < min(order.index(f"t{index}") for index in range(8))
    expect_all(cluster, lengths)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_rows_bound_what_runs(topology: str) -> None:
    cluster = make_cluster(topology, max_requests=3)
    lengths = {f"r{index}": 5 + index for index in range(5)}
    assign_many(cluster, lengths, n=2)
    worker = cluster.workers[-1]
    most = 0

    def is_done() -> bool:
        nonlocal most
        most = max(most, worker.stats().running)
        assert worker.stats().running <= 3
        return cluster.at_rest()

    cluster.run(is_done)
    assert most == 2
    expect_all(cluster, lengths, n=2)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_a_burst_is_not_refused_while_there_is_room(topology: str) -> None:
    cluster = make_cluster(topology, chunk_size=64, policies=Policies(max_queued_requests=1))
    assign_many(cluster, {"r0": 10})
    cluster.run()  # decode and prefill have met
    burst = {f"r{index}": 10 for index in range(1, 5)}
    assign_many(cluster, burst)
    cluster.run()
    expect_all(cluster, {"r0": 10, **burst})


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize(
    "length,most,n,says",
    [
        (70, 6, 1, "the request needs 19 KV pages, this worker has 15"),
        (10, 60, 1, "the request needs 18 KV pages, this worker has 15"),
        (10, 6, 5, "n: got 5, this worker runs at most 4 choices"),
    ],
)
def test_what_never_fits_is_refused_at_once(topology: str, length: int, most: int, n: int, says: str) -> None:
    cluster = make_cluster(topology, num_pages=16, max_requests=4)
    cluster.assign("huge", prompt_of("huge", length), greedy(most), n)
    cluster.assign("fine", prompt_of("fine", 10), PARAMS)
    cluster.run()
    failure = cluster.failures["huge"]
    assert (failure.code, failure.message) == ("bad_request", says)
    expect_exact(cluster, "fine", prompt_of("fine", 10), PARAMS)
    expect_rest(cluster)


def test_a_prompt_that_only_prefill_cannot_hold_fails_with_prefills_reason_and_without_a_token() -> None:
    """Decode has room for it. Without its KV, an answer would be made of whatever its pages held before."""
    cluster = make_cluster("1P1D", num_pages=16, decode_page_size=32)
    for name, length in (("before", 50), ("long", 90), ("after", 50)):
        cluster.assign(name, prompt_of(name, length), PARAMS)
    cluster.run()
    assert list(cluster.failures) == ["long"] and not cluster.answers["long", 0].tokens
    assert cluster.failures["long"].message == "the request needs 23 KV pages, this worker has 15"
    for name in ("before", "after"):
        expect_exact(cluster, name, prompt_of(name, 50), PARAMS)
    expect_rest(cluster)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_a_context_longer_than_the_page_table_is_refused(topology: str) -> None:
    cluster = make_cluster(topology, max_context=32)
    cluster.assign("long", prompt_of("long", 30), PARAMS)
    cluster.assign("longer", prompt_of("longer", 60), PARAMS)
    cluster.assign("fits", prompt_of("fits", 27), PARAMS)
    cluster.run()
    assert {name: failure.code for name, failure in cluster.failures.items()} == {
        "long": "bad_request",
        "longer": "bad_request",
    }
    assert "35" in cluster.failures["long"].message and "32" in cluster.failures["long"].message
    expect_exact(cluster, "fits", prompt_of("fits", 27), PARAMS)
    expect_rest(cluster)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_an_empty_prompt_is_refused(topology: str) -> None:
    cluster = make_cluster(topology)
    cluster.assign("empty", [], PARAMS)
    cluster.assign("fine", prompt_of("fine", 10), PARAMS)
    cluster.run()
    assert cluster.failures["empty"].code == "bad_request"
    expect_exact(cluster, "fine", prompt_of("fine", 10), PARAMS)
    expect_rest(cluster)


def test_reservations_never_outrun_job_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill.decode_peers.JOB_TOKENS", 40)
    cluster = make_cluster("1P2D", chunk_size=5)
    lengths = {f"r{index}": 30 for index in range(12)}
    assign_many(cluster, lengths)
    (prefill,) = cluster.prefills.values()
    most = 0

    def is_done() -> bool:
        nonlocal most
        for instance, decode in cluster.decodes.items():
            queued = [job for job in (*prefill._waiting, *prefill._computing) if job.target.peer.instance == instance]
            tokens = sum(job.prompt.prompt_len for job in queued)
            most = max(most, tokens)
            assert tokens < 40 + 30  # a job may go whenever any credit is left
            held = [r for r in decode._requests.by_key.values() if phase_of(r) is Phase.RESERVING]
            assert all(req.holding is None for request in held for req in request.reqs)
        return cluster.at_rest()

    cluster.run(is_done)
    assert most == 60
    expect_all(cluster, lengths)


def test_who_lacks_credit_lets_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill.decode_peers.JOB_TOKENS", 10)
    cluster = make_cluster("2P1D")
    (decode,) = cluster.decodes.values()
    one, two = cluster.prefills
    for name in ("a0", "a1", "a2"):
        cluster.assign(name, prompt_of(name, 40), PARAMS)
        assert decode._requests.by_key[name, 0].prefill.instance in (one, two)
    names = sorted(decode._requests.by_key)
    cluster.run()
    for name, _ in names:
        expect_exact(cluster, name, prompt_of(name, 40), PARAMS)
    expect_rest(cluster)


def test_credit_comes_back_from_jobs_that_were_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill.decode_peers.JOB_TOKENS", 10)
    cluster = make_cluster()
    for index in range(5):
        cluster.assign(f"r{index}", prompt_of(f"r{index}", 40), PARAMS)
    cluster.run(lambda: decode_phase(cluster, "r0") is Phase.REQUESTED)
    for index in range(4):
        cluster.cancel(f"r{index}")
    cluster.run()
    expect_exact(cluster, "r4", prompt_of("r4", 40), PARAMS)
    expect_rest(cluster)


def test_pages_are_reserved_until_their_kv_is_there_and_owned_from_then_on() -> None:
    cluster = make_cluster()
    (decode,) = cluster.decodes.values()
    cluster.assign("r", prompt_of("r", 33), PARAMS, 2)
    # 33 tokens are 9 pages; the second choice shares the 8 full ones. Each choice grows by one page.
    for state, reserved, owned in (
        (Phase.RESERVING, 0, 0),
        (Phase.REQUESTED, 10, 0),
        (Phase.RECEIVING, 10, 0),
        (Phase.RUNNING, 0, 10),
    ):
        drive_to(cluster, "r", state)
        counts = decode.planner.book.pages.counts()
        assert (counts.reserved, counts.owned) == (reserved, owned)
    cluster.run()
    expect_exact(cluster, "r", prompt_of("r", 33), PARAMS, 2)
    expect_rest(cluster)


def test_a_repeated_assign_is_one_request() -> None:
    cluster = make_cluster()
    cluster.assign("r", prompt_of("r", 20), PARAMS)
    cluster.step()
    (decode,) = cluster.decodes.values()
    prompt = tuple(prompt_of("r", 20, VOCAB))
    decode.on_gateway(Assign("r", 0, prompt, PARAMS, 1, next(iter(cluster.addresses.values()))))
    cluster.run()
    (prefill,) = cluster.prefills.values()
    assert prefill._sender.counters["transfers_delivered"] == 1
    expect_exact(cluster, "r", prompt_of("r", 20), PARAMS)
    expect_rest(cluster)


def test_a_decode_worker_is_told_its_prefill_worker() -> None:
    cluster = make_cluster()
    (decode,) = cluster.decodes.values()
    decode.on_gateway(Assign("r", 0, (1, 2), PARAMS, 1, None))
    cluster.step()
    assert cluster.failures["r"].code == "bad_request"
    expect_rest(cluster)
