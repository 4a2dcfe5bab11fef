"""A worker that was declared lost and is heard again: what the gateway answers, and what it takes from whom."""

import logging

import pytest

from gateway.routing.members import WorkerKey
from protocol.messages_gateway import (
    Assign,
    ChoiceTokens,
    DeclaredLost,
    FinishReason,
    FirstToken,
    FlushCache,
    Heartbeat,
    PeerLost,
    Refused,
    Role,
    Tokens,
    Welcome,
)
from protocol.worker_facts import CacheNews
from runtime.session import SessionLost
from tests.gateway.pair_bench import OUTPUTS, PREFILL, STATS, PairBench
from tests.gateway.worker_ends import register


def told(bench: PairBench, key: WorkerKey) -> list[object]:
    """What a worker was told since the last call."""
    found = [message for worker_id, message in bench.sent if worker_id == key.worker_id]
    bench.sent[:] = [each for each in bench.sent if each[0] != key.worker_id]
    return [*found]


def test_a_lost_worker_joins_as_another_instance_and_the_former_one_counts_no_more() -> None:
    bench = PairBench()
    old = WorkerKey.of(bench.decode)
    new, other = WorkerKey(old.worker_id, 99), WorkerKey.of(bench.other)
    bench.control._lose(old, SessionLost("was silent for 2.0 s"))
    assert told(bench, PREFILL) == [PeerLost(old.worker_id, old.instance)]
    [again] = [each for each in told(bench, other) if isinstance(each, Assign)]

    lost = DeclaredLost(f"worker {old.worker_id!r} was silent for 2.0 s")
    bench.say(old.identity, Heartbeat(old.worker_id, old.instance, STATS))
    bench.say(old.identity, register(old.worker_id, old.instance))
    assert told(bench, old) == [lost, lost]
    bench.say(new.identity, register(new.worker_id, new.instance))
    assert told(bench, new) == [Welcome(7)] and bench.control.membership.find(new) is not None

    num_refused = bench.control.refusals.total
    bench.say(old.identity, Tokens((ChoiceTokens("r1", 0, 0, 0, (66,), "length"),)))
    assert bench.control.refusals.total == num_refused + 1 and bench.client.tokens == [[]]
    bench.say(PREFILL.identity, FirstToken((ChoiceTokens("r1", again.attempt, 0, 0, OUTPUTS[:1]),)))
    bench.say(other.identity, Tokens((ChoiceTokens("r1", again.attempt, 0, 0, OUTPUTS, "length"),)))
    assert (bench.client.tokens, bench.client.finish) == ([[*OUTPUTS]], [FinishReason.LENGTH])
    assert bench.control.membership.num_lost == 1 and bench.control.joined[Role.DECODE] == 3


@pytest.mark.parametrize(
    ("launch_age_s", "line"),
    [(0.0, "lost worker is heard again"), (1e6, "worker refused")],
    ids=["may return", "hangs"],
)
def test_a_lost_worker_that_is_heard_again_and_again_is_logged_once(
    caplog: pytest.LogCaptureFixture, launch_age_s: float, line: str
) -> None:
    """It is answered each time, because an answer may be lost."""
    caplog.set_level(logging.INFO)
    bench = PairBench()
    keys = [WorkerKey.of(identity) for identity in (bench.decode, bench.other)]
    for num_lost, key in enumerate(keys, 1):
        beat = Heartbeat(key.worker_id, key.instance, STATS, launch_age_s)
        bench.say(key.identity, beat)
        bench.control._lose(key, SessionLost("was silent for 2.0 s"))
        told(bench, key)
        for _ in range(5):
            bench.say(key.identity, beat)
        answers = told(bench, key)
        assert len(answers) == 5 and all(isinstance(answer, DeclaredLost | Refused) for answer in answers)
        assert [record.getMessage() for record in caplog.records].count(line) == num_lost


def test_what_the_next_instance_has_cached_is_its_own_news() -> None:
    bench = PairBench()
    old = WorkerKey.of(bench.decode)
    new = WorkerKey(old.worker_id, 99)
    bench.say(old.identity, Heartbeat(old.worker_id, old.instance, STATS, cache=CacheNews(added=(b"12345678",))))
    bench.control._lose(old)
    bench.say(new.identity, register(new.worker_id, new.instance))
    member = bench.control.membership.find(new)
    assert member is not None and len(member.prefixes) == 0
    bench.say(new.identity, Heartbeat(new.worker_id, new.instance, STATS, cache=CacheNews(added=(b"12345678",))))
    assert len(member.prefixes) == 1


def test_welcome_tells_of_a_flush_that_came_while_the_worker_was_lost_and_the_flush_does_not_wait() -> None:
    bench = PairBench()
    old = WorkerKey("p", PREFILL.instance)
    new = WorkerKey("p", 99)
    bench.control._lose(old)
    bench.sent.clear()
    flush = bench.control.begin_flush()
    asked = {worker_id for worker_id, message in bench.sent if isinstance(message, FlushCache)}
    assert asked == {"d", "d2"} and old.identity not in flush.waiting
    bench.say(new.identity, register(new.worker_id, new.instance, Role.PREFILL))
    assert told(bench, new) == [Welcome(7, num_flushes=1)]
