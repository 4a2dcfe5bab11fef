"""A worker without memory preempts a choice. The gateway has it resume with its outputs; the client sees nothing."""

import logging

import pytest

from protocol.errors import Preemption
from protocol.messages_gateway import Assign, ChoiceTokens, FirstToken, RequestFailed
from tests.gateway.control_bench import PROMPT, ControlBench


def test_it_begins_again_with_its_outputs_and_ahead_of_new_requests() -> None:
    bench = ControlBench("u0")
    client, first = bench.ask()
    assert not first.resumes, "nothing was preempted"
    bench.tokens(first, 0, 0, 11, 12)
    bench.preempt(first)
    again = bench.assigns[-1]
    assert (again.attempt, again.num_replayed, again.resumes) == (1, 2, True)
    assert again.prompt_ids == (*PROMPT, 11, 12) and again.sampling == first.sampling
    assert bench.cancels == [], "its worker has dropped it already"
    [record] = bench.dispatch.requests
    assert record.avoided == set() and bench.sent[-1] == ("u0", again)
    bench.tokens(again, 0, 2, 13, finish="stop")
    bench.expect_end(client, [11, 12, 13])


def test_however_often_it_is_preempted_it_uses_up_no_attempt() -> None:
    bench = ControlBench("u0", max_attempts=1)
    client, assign = bench.ask()
    for seq in range(6):
        bench.tokens(assign, 0, seq, 10 + seq)
        bench.preempt(assign)
        assert bench.assigns[-1].attempt == seq + 1
        assign = bench.assigns[-1]
    assert bench.dispatch.retries.counts["retracted"] == 6 and sum(bench.dispatch.retries.counts.values()) == 6
    bench.say("u0", RequestFailed("r", assign.attempt, "unavailable", "broken"))
    assert client.error is not None and client.error.message == "broken (the only attempt)"
    assert client.tokens == [[10, 11, 12, 13, 14, 15]]
    bench.expect_rest()


def test_choices_of_one_attempt_are_preempted_one_by_one() -> None:
    bench = ControlBench("u0")
    client, first = bench.ask(n=3)
    for choice in range(3):
        bench.tokens(first, choice, 0, 10 * choice)
    bench.preempt(first, 1)
    again = bench.assigns[-1]
    assert (again.attempt, again.first_choice, again.num_choices, again.num_replayed) == (1, 1, 1, 1)
    bench.tokens(first, 0, 1, 1, finish="stop")
    bench.preempt(first, 2)
    last = bench.assigns[-1]
    assert (last.attempt, last.first_choice, last.num_choices, last.num_replayed) == (2, 2, 1, 1)
    assert [number for record in bench.dispatch.requests for number in record.attempts] == [1, 2]
    bench.tokens(again, 1, 1, 11, finish="stop")
    bench.tokens(last, 2, 1, 21, finish="stop")
    bench.expect_end(client, [0, 1], [10, 11], [20, 21])


def test_a_choice_counts_where_it_runs_and_nowhere_else() -> None:
    """The prompt of three tokens counts once for each attempt, and each choice keeps room for five more."""
    bench = ControlBench("u0", "u1", margin=5)

    def total() -> tuple[int, ...]:
        return tuple(map(sum, zip(*bench.dispatch.loads.values(), strict=True)))

    _, first = bench.ask(n=3)
    [worker] = {to for to, message in bench.sent if message is first}
    assert total() == (3, 3 + 15)
    for num_away in (1, 2, 3):
        bench.preempt(first, num_away - 1, by=worker)
        staying = 3 + 5 * (3 - num_away) if num_away < 3 else 0
        assert total() == (3, staying + num_away * (3 + 5))


def test_what_its_older_attempt_says_late_is_dropped() -> None:
    """Prefill's first token may come after decode has preempted its choice."""
    bench = ControlBench("u0")
    client, first = bench.ask(n=2)
    bench.tokens(first, 0, 0, 11)
    bench.preempt(first, 1)  # the attempt goes on with choice 0
    bench.say("u0", FirstToken((ChoiceTokens("r", 0, 0, 0, (11,)), ChoiceTokens("r", 0, 1, 0, (99,)))))
    assert client.tokens == [[11], []]
    again = bench.assigns[-1]
    bench.tokens(again, 1, 0, 21, finish="stop")
    bench.tokens(first, 0, 1, 12, finish="stop")
    num_dropped = bench.dispatch.requests.num_dropped
    bench.tokens(first, 1, 0, 99)
    assert bench.dispatch.requests.num_dropped == num_dropped + 1, "the whole attempt is over"
    bench.expect_end(client, [11, 12], [21])


@pytest.mark.parametrize("others", [0, 1])
def test_a_second_word_about_the_same_choice_changes_nothing(others: int) -> None:
    bench = ControlBench("u0")
    client, first = bench.ask(n=1 + others)
    bench.preempt(first)
    bench.preempt(first)
    assert len(bench.assigns) == 2 and bench.dispatch.retries.counts["retracted"] == 1
    bench.tokens(bench.assigns[-1], 0, 0, 11, finish="stop")
    for choice in range(1, 1 + others):
        bench.tokens(first, choice, 0, 11, finish="stop")
    bench.preempt(first)
    assert client.is_done and len(bench.assigns) == 2
    bench.expect_rest()


@pytest.mark.parametrize("choice", [-1, 2, 10**6])
def test_a_choice_that_the_attempt_does_not_have_cannot_be_preempted(choice: int) -> None:
    bench = ControlBench("u0")
    client, first = bench.ask(n=2)
    bench.preempt(first, choice)
    assert len(bench.assigns) == 1
    for each in range(2):
        bench.tokens(first, each, 0, 11, finish="stop")
    assert client.is_done and client.error is None
    bench.expect_rest()


def test_cancel_after_it_began_again_reaches_the_new_attempt_only() -> None:
    bench = ControlBench("u0")
    _, first = bench.ask(n=2)
    bench.preempt(first, 1)
    bench.dispatch.cancel("r", 1)
    assert [(each.attempt, each.choice) for each in bench.cancels] == [(1, -1)]
    bench.dispatch.cancel("r")
    assert [(each.attempt, each.choice) for each in bench.cancels] == [(1, -1), (0, -1)]
    bench.expect_rest()


@pytest.mark.parametrize("whole", [True, False])
def test_cancel_while_it_waits_for_workers(whole: bool) -> None:
    bench = ControlBench("u0")
    client, first = bench.ask()
    strand(bench, first)
    bench.dispatch.cancel("r", -1 if whole else 0)
    bench.join("u1")
    assert len(bench.assigns) == 1 and client.error is None
    bench.expect_rest()


def strand(bench: ControlBench, assign: Assign) -> None:
    """Choice 0 is preempted while no worker can be reached."""
    bench.cut.add("u0")
    bench.preempt(assign)
    assert len(bench.dispatch._unpaired) == 1


def test_without_workers_it_waits_for_one() -> None:
    bench = ControlBench("u0")
    client, first = bench.ask()
    bench.tokens(first, 0, 0, 11)
    strand(bench, first)
    bench.join("u1")
    again = bench.assigns[-1]
    assert (again.num_replayed, again.resumes) == (1, True)
    bench.tokens(again, 0, 1, 12, by="u1", finish="stop")
    bench.expect_end(client, [11, 12])


def test_without_workers_for_too_long_its_client_is_told_why() -> None:
    bench = ControlBench("u0")
    client, first = bench.ask()
    strand(bench, first)
    bench.clock.advance(3.9)
    bench.control.look()
    assert client.error is None
    bench.clock.advance(0.2)
    bench.control.look()
    assert isinstance(client.error, Preemption), client.error
    assert client.error.message == "u0 had no memory for it any more, and no other worker could take over in 4 s"
    bench.expect_rest()


def test_a_worker_lost_later_takes_only_what_was_not_preempted() -> None:
    bench = ControlBench("u0")
    client, first = bench.ask(n=2)
    for choice in range(2):
        bench.tokens(first, choice, 0, 10 + choice)
    bench.join("u1")
    bench.preempt(first, 1)  # to the worker with less load
    again = bench.assigns[-1]
    assert bench.sent[-1] == ("u1", again)
    bench.lose("u0")
    moved = bench.assigns[-1]
    assert (moved.attempt, moved.first_choice, moved.num_choices, moved.resumes) == (2, 0, 1, False)
    assert len(bench.assigns) == 3, "choice 1 runs elsewhere already"
    bench.tokens(again, 1, 1, 21, by="u1", finish="stop")
    bench.tokens(moved, 0, 1, 20, by="u1", finish="stop")
    bench.expect_end(client, [10, 20], [11, 21])


def test_an_attempt_after_a_loss_still_resumes() -> None:
    bench = ControlBench("u0")
    _, first = bench.ask()
    bench.preempt(first)
    bench.join("u1")
    bench.lose("u0")
    assert bench.assigns[-1].attempt == 2 and bench.assigns[-1].resumes
    assert bench.dispatch.retries.counts["retracted"] == bench.dispatch.retries.counts["worker_lost"] == 1


def test_it_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton")
    bench = ControlBench("u0")
    _, first = bench.ask()
    bench.preempt(first)
    [line] = [record for record in caplog.records if record.name.endswith("retries")]
    assert (line.levelname, line.getMessage()) == ("INFO", "request preempted")
    why = "u0 had no memory for it any more"
    told = {"request_id": "r", "attempt": 1, "worker": "u0", "before": "u0", "why": why}
    assert line.__dict__["baton_fields"] == told


def test_cached_tokens_are_those_of_the_attempt_that_began_the_answer() -> None:
    """A later attempt finds the KV of the ones before it: what was computed for this request was not cached for it."""
    bench = ControlBench("u0")
    _, first = bench.ask()
    [record] = bench.dispatch.requests
    bench.tokens(first, 0, 0, 11)
    bench.preempt(first)
    bench.tokens(bench.assigns[-1], 0, 1, 12, cached=3)
    assert record.num_cached == 0
    _, other = bench.ask("s")
    [_, record] = bench.dispatch.requests
    bench.tokens(other, 0, 0, 11, cached=2)
    bench.preempt(other)
    bench.tokens(bench.assigns[-1], 0, 1, 12, cached=3)
    assert record.num_cached == 2
