"""Prefill workers that end with one grammar: the gateway may hear of it first, or the decode worker's complaint."""

from dataclasses import replace
from itertools import product

import pytest

from gateway.routing.members import HowLost, WorkerKey
from protocol.errors import GrammarFault, KvNotDelivered, WorkerLost
from protocol.messages_gateway import Assign, CancelRequest, RequestFailed, Role
from tests.gateway.client import Client
from tests.gateway.control_bench import ControlBench

Complaint = type[KvNotDelivered] | type[WorkerLost]  # of a decode worker


class PairsBench(ControlBench):
    """Three prefill and three decode workers, and a request in a grammar."""

    def __init__(self, grammar: str = "g") -> None:
        super().__init__(max_attempts=9)
        self.blamed: list[str] = []
        self.dispatch._blame = self.blamed.append
        self.sampling = replace(self.sampling, grammar=grammar)
        for number in range(3):
            self.join(f"p{number}", Role.PREFILL)
            self.join(f"d{number}", Role.DECODE)

    def fail(self, assign: Assign, error: Complaint) -> None:
        decode = next(name for name, message in self.sent if message is assign)
        self.say(decode, RequestFailed(assign.request_id, assign.attempt, error.code, "no KV"))

    def end_prefill(self, assign: Assign, *, is_told_first: bool, error: Complaint = WorkerLost) -> str:
        """Its prefill worker ends. Returns its name. `error`: what decode says behind the gateway's news; it may
        have noticed by itself."""
        assert assign.prefill is not None
        if is_told_first:
            self.fail(assign, KvNotDelivered)
            self.lose(assign.prefill.worker_id)
        else:
            self.lose(assign.prefill.worker_id)
            self.fail(assign, error)
        return assign.prefill.worker_id


def run(bench: PairsBench, orders: tuple[bool, ...], error: Complaint = WorkerLost) -> tuple[Client, set[str]]:
    client, assign = bench.ask()
    ended = set[str]()
    for is_told_first in orders:
        ended.add(bench.end_prefill(assign, is_told_first=is_told_first, error=error))
        assign = bench.assigns[-1]
    return client, ended


@pytest.mark.parametrize("error", (WorkerLost, KvNotDelivered))
@pytest.mark.parametrize("orders", [*product((False, True), repeat=2)])
def test_two_ends_blame_the_grammar_whichever_news_comes_first(orders: tuple[bool, bool], error: Complaint) -> None:
    bench = PairsBench()
    client, ended = run(bench, orders, error)
    assert len(ended) == 2 and bench.blamed == ["g"]
    assert client.error is not None and client.error.code == GrammarFault.code
    assert "2 workers have ended" in client.error.message
    if orders[-1]:  # a third attempt had begun
        last = bench.assigns[-1]
        assert last.attempt == 2 and CancelRequest(last.request_id, last.attempt) in bench.cancels
    bench.expect_rest()


@pytest.mark.parametrize("is_told_first", (False, True))
def test_one_end_counts_once(is_told_first: bool) -> None:
    bench = PairsBench()
    client, _ = run(bench, (is_told_first,))
    [record] = bench.dispatch.requests
    assert [choice.num_ended_workers for choice in record.choices] == [1] and client.error is None
    assert not record.undelivered or not is_told_first


def test_kv_that_did_not_come_from_workers_that_live_blames_nothing() -> None:
    bench = PairsBench()
    client, assign = bench.ask()
    for _ in range(4):
        bench.fail(assign, KvNotDelivered)
        assign = bench.assigns[-1]
    [record] = bench.dispatch.requests
    assert [choice.num_ended_workers for choice in record.choices] == [0]
    assert client.error is None and not bench.blamed and assign.attempt == 4


def test_without_a_grammar_nothing_is_blamed() -> None:
    bench = PairsBench("")
    client, ended = run(bench, (True, True))
    assert len(ended) == 2 and client.error is None and not bench.blamed


def test_workers_that_do_not_take_what_they_are_sent_blame_nothing() -> None:
    """They may stand still. Only those whose connections are gone have ended."""
    bench = PairsBench()
    bench.is_full = True
    _, ended = run(bench, (False, True))
    losses = bench.control.membership.losses
    assert len(ended) == 2 and [loss.how for loss in losses.values()] == [HowLost.CUT] * 2
    assert not bench.blamed and "does not take what is sent to it" in str(losses)


def test_a_decode_worker_that_ends_after_its_attempt_blames_nothing() -> None:
    """Its attempt had failed because no KV came: whatever ends decode later does not explain that."""
    bench = PairsBench()
    _, assign = bench.ask()
    decode = next(name for name, message in bench.sent if message is assign)
    bench.fail(assign, KvNotDelivered)
    bench.lose(decode)
    [record] = bench.dispatch.requests
    counted = [choice.num_ended_workers for choice in record.choices]
    assert bench.control.membership.find(WorkerKey(decode, 1)) is None
    assert counted == [int(bench.assigns[-1].attempt > 1)], "the next attempt, if it ran there, too"
