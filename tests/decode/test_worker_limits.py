"""Tight pools of pages and rows, and job credit: everybody is served in the end, nobody holds more than their share."""

import pytest

from protocol.messages_gateway import Assign
from tests.decode.driving import Driven, Phase, Recorder, drive_to, greedy, make_cluster, phase_of

PARAMS = greedy(6)


def ask_all(cluster: Driven, lengths: dict[str, int], n: int = 1) -> None:
    for name, length in lengths.items():
        cluster.ask(name, length, PARAMS, n)


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
def test_a_big_request_is_not_starved_by_small_ones(topology: str) -> None:
    cluster = make_cluster(topology, num_pages=16)
    record = Recorder(cluster)
    ask_all(cluster, {"s0": 4, "s1": 4, "big": 50, **{f"t{index}": 4 for index in range(8)}})
    cluster.run()
    order = [name for _, name, _, seq in record.pieces if seq == 0]
    assert order.index("big") < min(order.index(f"t{index}") for index in range(8))
    cluster.expect_end()


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
    cluster.ask("huge", length, greedy(most), n)
    cluster.ask("fine", 10, PARAMS)
    cluster.run()
    failure = cluster.failures["huge"]
    assert (failure.code, failure.message) == ("bad_request", says)
    cluster.expect_end(failed=["huge"])


def test_a_prompt_that_only_prefill_cannot_hold_fails_with_prefills_reason_and_without_a_token() -> None:
    """Decode has room for it. Without its KV, an answer would be made of whatever its pages held before."""
    cluster = make_cluster("1P1D", num_pages=16, decode_page_size=32)
    ask_all(cluster, {"before": 50, "long": 90, "after": 50})
    cluster.run()
    assert not cluster.answers["long", 0].tokens
    assert cluster.failures["long"].message == "the request needs 23 KV pages, this worker has 15"
    cluster.expect_end(failed=["long"])


def test_reservations_never_outrun_job_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill.decode_peers.JOB_TOKENS", 40)
    cluster = make_cluster("1P2D", chunk_size=5)
    ask_all(cluster, {f"r{index}": 30 for index in range(12)})
    prefill, most = cluster.prefill, 0

    def is_done() -> bool:
        nonlocal most
        for instance, decode in cluster.decodes.items():
            queued = [
                job
                for job in (*prefill.prompts.waiting, *prefill.prompts.computing)
                if job.destination.peer.instance == instance
            ]
            tokens = sum(job.prompt.prompt_len for job in queued)
            most = max(most, tokens)
            assert tokens < 40 + 30  # a job may go whenever any credit is left
            held = [r for r in decode.served.by_key.values() if phase_of(r) is Phase.RESERVING]
            assert all(req.holding is None for request in held for req in request.reqs)
        return cluster.at_rest()

    cluster.run(is_done)
    assert most == 60
    cluster.expect_end()


def test_pages_are_reserved_until_their_kv_is_there_and_owned_from_then_on() -> None:
    cluster = make_cluster()
    cluster.ask("r", 33, PARAMS, 2)
    # 33 tokens are 9 pages; the second choice shares the 8 full ones. Each choice grows by one page.
    for state, reserved, owned in (
        (Phase.RESERVING, 0, 0),
        (Phase.REQUESTED, 10, 0),
        (Phase.RECEIVING, 10, 0),
        (Phase.RUNNING, 0, 10),
    ):
        drive_to(cluster, "r", state)
        counts = cluster.decode.planner.kv_manager.pages.counts()
        assert (counts.reserved, counts.owned) == (reserved, owned)
    cluster.run()
    cluster.expect_end()


def test_a_repeated_assign_is_one_request() -> None:
    cluster = make_cluster()
    cluster.ask("r", 20, PARAMS)
    cluster.turn()
    prefill = next(iter(cluster.addresses.values()))
    cluster.decode.on_gateway(Assign("r", 0, tuple(cluster.asked["r"][0]), PARAMS, 1, prefill))
    cluster.run()
    assert cluster.prefill._sender.counters["transfers_delivered"] == 1
    cluster.expect_end()


def test_a_decode_worker_is_told_its_prefill_worker() -> None:
    cluster = make_cluster()
    cluster.decode.on_gateway(Assign("r", 0, (1, 2), PARAMS, 1, None))
    cluster.turn()
    assert cluster.failures["r"].code == "bad_request"
    cluster.expect_end(failed=["r"])
