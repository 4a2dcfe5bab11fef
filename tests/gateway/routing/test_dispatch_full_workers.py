"""A worker at which too many requests wait refuses one. The gateway tries others, and only then its client gets 429."""

import pytest

from gateway.http.errors import status_of
from protocol.messages_gateway import Assign, RequestFailed, Role
from tests.gateway.control_bench import ControlBench
from tests.gateway.worker_ends import register

WHY = "the worker's waiting line is full (--max-queued-requests 8)"


def refuse(bench: ControlBench, assign: Assign, by: str, code: str = "queue_full") -> None:
    bench.say(by, RequestFailed(assign.request_id, assign.attempt, code, WHY))


def workers_of(bench: ControlBench) -> list[str]:
    """Who got the Assigns."""
    return [worker_id for worker_id, message in bench.sent if isinstance(message, Assign)]


def test_each_worker_is_asked_once_and_a_refusal_is_no_attempt() -> None:
    bench = ControlBench("u0", "u1", "u2", max_attempts=1)
    client, assign = bench.ask()
    refuse(bench, assign, workers_of(bench)[-1])
    refuse(bench, bench.assigns[-1], workers_of(bench)[-1])
    assert sorted(workers_of(bench)) == ["u0", "u1", "u2"] and client.error is None
    last, by = bench.assigns[-1], workers_of(bench)[-1]
    [record] = bench.dispatch.requests
    assert record.choices[0].num_attempts == 1 and not record.avoided
    bench.tokens(last, 0, 0, 11, by=by, finish="stop")
    assert client.tokens == [[11]] and bench.dispatch.retries.counts["queue_full"] == 2
    bench.expect_rest()


def test_when_all_are_full_the_client_may_try_again() -> None:
    bench = ControlBench("u0", "u1")
    client, _ = bench.ask()
    for _ in range(2):
        refuse(bench, bench.assigns[-1], workers_of(bench)[-1])
    assert client.error is not None and status_of(client.error) == 429 and client.error.code == "overloaded"
    assert client.error.message == f"{WHY}, and no other worker has room; try again"
    bench.expect_rest()


def test_a_worker_that_was_full_is_asked_again_after_another_failure() -> None:
    bench = ControlBench("u0", "u1")
    client, assign = bench.ask()
    full, other = workers_of(bench)[0], "u1" if workers_of(bench)[0] == "u0" else "u0"
    refuse(bench, assign, full)
    assert workers_of(bench) == [full, other]
    bench.tokens(bench.assigns[-1], 0, 0, 11, by=other)
    bench.lose(other)
    assert workers_of(bench) == [full, other, full] and bench.assigns[-1].num_replayed == 1
    bench.tokens(bench.assigns[-1], 0, 1, 12, by=full, finish="stop")
    bench.expect_end(client, [11, 12])


@pytest.mark.parametrize("code, others", [("queue_full", ["d1"]), ("prefill_queue_full", [])])
def test_only_the_full_one_of_a_pair_is_left_out(code: str, others: list[str]) -> None:
    """With one prefill worker: another decode worker helps if the decode worker was full, and only then."""
    bench = ControlBench()
    bench.say("p0", register("p0", 1, Role.PREFILL))
    for worker_id in ("d0", "d1"):
        bench.say(worker_id, register(worker_id, 1, Role.DECODE))
    client, assign = bench.ask()
    first = workers_of(bench)[0]
    refuse(bench, assign, first, code)
    assert len(workers_of(bench)) == 1 + len(others) and first not in workers_of(bench)[1:]
    assert (client.error is None) == bool(others)


def test_those_without_workers_are_served_by_priority_and_who_was_preempted_first() -> None:
    bench = ControlBench("u0")
    for name, priority in (("low", 5), ("usual", 0), ("preempted", 9), ("urgent", -1)):
        _, assign = bench.ask(name, priority=priority)
        assert assign.priority == priority
        if name == "preempted":
            bench.preempt(assign)
    bench.lose("u0")
    num_before = len(bench.assigns)
    bench.join("u9")
    again = [assign.request_id for assign in bench.assigns[num_before:]]
    assert again == ["preempted", "urgent", "usual", "low"]
