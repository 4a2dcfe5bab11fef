from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.errors import InternalError, LaunchFailed
from protocol.messages_gateway import FinishReason
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.plan import StepResult
from scheduler.planning.launched import Launched
from scheduler.planning.overlap_loop import LaunchFailures, OverlapLoop
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.planning.steps import Steps
from tests.decode.driving import greedy
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import (
    FailAt,
    ManualStream,
    admitted,
    make_executor,
    make_pair,
    make_planner,
    prompt_chunk,
)
from tests.scheduler.remembering import Remembers


class OneRequest:
    """A role with a single request, which notes what the loop asks of it: names with the number of the launch."""

    def __init__(self, planner: Planner, max_tokens: int) -> None:
        self.calls: list[str] = []
        self.req = admitted(planner, (5, 6, 7), greedy(max_tokens))
        self.tokens: list[int] = []
        self.errors: list[Exception] = []
        self._numbers: dict[Launched, int] = {}
        self._planner = planner

    def launch(self) -> bool:
        number = len(self._numbers)
        chunks, decodes = prompt_chunk(self.req) if number == 0 else [], self._planner.decodes()
        if self.req.finish is not None or not (chunks or decodes):
            return False
        self._numbers[self._planner.launch(chunks, decodes)] = number
        if chunks:
            self._planner.join([self.req])
        self.calls.append(f"launch {number}")
        return True

    def process(self, launched: Launched, drawn: list[tuple[Req, tuple[int, ...]]]) -> None:
        self.calls.append(f"process {self._numbers[launched]}")
        for req, run in drawn:
            self.tokens += req.append(run)
            if req.finish is not None:
                self._planner.release(req)

    def failed(self, reqs: Sequence[Req], error: Exception) -> None:
        assert set(reqs) == {self.req}
        self.req.finish = FinishReason.CANCELLED
        self._planner.release(self.req)
        self.calls.append(f"failed: {error}")
        self.errors.append(error)


def complete_one(executor: Executor) -> None:
    copy_done = executor.launches[0].copy_done
    assert copy_done is not None
    copy_done.synchronize()


def drive(overlap: bool, max_tokens: int = 3, failing: int = 0) -> OneRequest:
    """Completes one launch whenever the loop has nothing else to do."""
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=FailAt(failing))
    executor, planner = make_pair(ManualStream(), runner=runner)
    role = OneRequest(planner, max_tokens)
    loop = OverlapLoop(planner, role, overlap)
    while loop.turn() or loop.busy:
        if loop.busy and not loop.turn():
            complete_one(executor)
    assert not loop.busy and loop.oldest_launch == 0
    return role


def test_overlap_launches_the_next_batch_before_the_results_of_the_last_are_known() -> None:
    assert drive(overlap=True).calls == [
        "launch 0",
        "launch 1",
        "process 0",
        "launch 2",
        "process 1",
        "process 2",
    ]


def test_the_serial_twin_does_not() -> None:
    assert drive(overlap=False).calls == [f"{call} {number}" for number in range(3) for call in ("launch", "process")]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_both_make_the_same_calls_and_the_same_tokens(max_tokens: int) -> None:
    overlapped, serial = drive(True, max_tokens), drive(False, max_tokens)
    assert sorted(overlapped.calls) == sorted(serial.calls)
    for name in ("launch", "process"):
        order = [[call for call in role.calls if call.startswith(name)] for role in (overlapped, serial)]
        assert order[0] == order[1]
    assert overlapped.tokens == serial.tokens == FakeRunner(vocab_size=97).expected_tokens((5, 6, 7), max_tokens)


def test_never_more_than_two_in_flight_and_a_step_never_blocks() -> None:
    planner = make_planner(make_executor(ManualStream()))
    loop = OverlapLoop(planner, OneRequest(planner, 6), overlap=True)
    assert [loop.turn() for _ in range(4)] == [True, True, False, False]
    assert len(planner.in_flight) == 2 and loop.busy and loop.oldest_launch == planner.in_flight[0].ticket


def test_a_failed_launch_is_told_instead_of_processed() -> None:
    role = drive(overlap=False, max_tokens=1, failing=1)
    assert role.calls == ["launch 0", "failed: RuntimeError: forward 1 is broken"]
    assert [type(error) for error in role.errors] == [LaunchFailed] and role.tokens == []


def made(speculation: Speculation | None = None) -> tuple[Remembers, Planner, OneRequest, OverlapLoop]:
    executor = Remembers()
    planner = make_planner(make_executor(ManualStream()), speculation=speculation)
    vars(planner).update(_executor=executor, steps=Steps(executor.submit, None, NO_DRAFT))
    role = OneRequest(planner, 5)
    return executor, planner, role, OverlapLoop(planner, role, overlap=True)


def test_results_of_several_tokens_end_a_choice_and_what_is_late_is_dropped() -> None:
    executor, planner, role, loop = made()
    owner = (role.req.held.row, role.req.held.owner_number)
    assert loop.turn() and loop.turn()
    executor.outcomes = [StepResult(1, (owner,), ((11, 12),)), StepResult(2, (owner,), ((),))]
    assert loop.turn()
    assert role.tokens == [11, 12] and role.req.num_sampled == 2 + 1, "one more is launched"
    assert loop.turn()
    assert role.req.num_sampled == 4
    executor.outcomes = [StepResult(3, (owner,), ((13, 14, 15, 16),)), StepResult(4, (owner,), ((17,),))]
    assert loop.turn()
    assert (role.tokens, role.req.finish) == ([11, 12, 13, 14, 15], FinishReason.LENGTH)
    planner.release(role.req)
    assert planner.decodes() == () and not loop.turn()


def test_proposals_count_only_for_choices_that_have_not_ended() -> None:
    """The launch after the one that ends a choice was under way already."""
    speculation = Speculation(DraftShape(3), 9)
    executor, _, role, loop = made(speculation)
    owner = (role.req.held.row, role.req.held.owner_number)
    assert loop.turn() and loop.turn()
    runs = ((11,), (12, 13), (14, 15), (16, 17, 18))  # the prompt's, two that are used, one that is late
    executor.outcomes = [StepResult(1, (owner,), runs[:1])]
    assert loop.turn() and (speculation.proposed, speculation.accepted) == ([0, 0, 0], [0, 0, 0])
    executor.outcomes = [StepResult(2, (owner,), runs[1:2])]
    assert loop.turn()
    assert (speculation.proposed, speculation.accepted) == ([1, 1, 1], [1, 0, 0])
    executor.outcomes = [StepResult(3, (owner,), runs[2:3]), StepResult(4, (owner,), runs[3:])]
    assert loop.turn() and role.req.finish is FinishReason.LENGTH
    assert (speculation.proposed, speculation.accepted) == ([2, 2, 2], [2, 0, 0])


def test_scores_that_are_not_finite_fail_their_choice_unless_it_is_gone() -> None:
    executor, planner, role, loop = made()
    owner = (role.req.held.row, role.req.held.owner_number)
    loop.turn()
    executor.outcomes = [StepResult(1, (owner,), ((),), not_finite=(owner,))]
    loop.turn()
    (error,) = role.errors
    assert type(error) is InternalError and str(error) == "the model's scores for the next token are not finite"
    assert not loop.broken and role.tokens == []
    assert role.calls.index(f"failed: {error}") < role.calls.index("process 0"), "a choice without a token is processed"

    executor, planner, role, loop = made()
    loop.turn()
    role.req.finish = FinishReason.CANCELLED
    planner.release(role.req)
    executor.outcomes = [StepResult(1, (owner,), ((),), not_finite=(owner,))]
    loop.turn()
    assert role.calls == ["launch 0", "process 0"] and role.errors == []


@pytest.mark.parametrize("num_tokens", [2, 5])
def test_a_run_counts_up_to_the_scores_that_are_not_finite(num_tokens: int) -> None:
    """Without a draft the choice would have had these tokens, too. If they end it, nobody needs the scores behind."""
    executor, _, role, loop = made()
    owner = (role.req.held.row, role.req.held.owner_number)
    loop.turn()
    executor.outcomes = [StepResult(1, (owner,), (tuple(range(num_tokens)),), not_finite=(owner,))]
    loop.turn()
    assert role.tokens == list(range(num_tokens))
    ends = num_tokens == role.req.sampling.max_tokens
    assert (role.req.finish, len(role.errors)) == ((FinishReason.LENGTH, 0) if ends else (FinishReason.CANCELLED, 1))


class Books:
    """What a loop asks of a planner without work in which nothing is over. `late` is its own."""

    def __init__(self, num_in_flight: int = 0, *, is_called: bool = False, num_away: int = 0) -> None:
        self.in_flight, self.num_told, self._is_called = [object()] * num_in_flight, 0, is_called
        self.spills, self.late = SimpleNamespace(away=[object()] * num_away), self

    def launch_idle_batch(self) -> bool:
        return self._is_called

    def poll(self) -> list[object]:
        return []

    def ask(self, in_flight: object) -> None:
        assert in_flight is self.in_flight

    def collect(self) -> bool:
        return False


def loop_of(books: Books, *, overlap: bool) -> OverlapLoop:
    role = SimpleNamespace(launch=lambda: False)
    return OverlapLoop(cast(Any, books), cast(Any, role), overlap)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("is_called", [True, False])
@pytest.mark.parametrize("num_in_flight", [0, 1, 2])
def test_a_call_is_answered_only_while_a_launch_has_room(num_in_flight: int, is_called: bool, overlap: bool) -> None:
    """A worker that says otherwise turns at full speed until a launch is over."""
    loop = loop_of(Books(num_in_flight, is_called=is_called), overlap=overlap)
    assert loop.turn() is (is_called and num_in_flight < (2 if overlap else 1))


@pytest.mark.parametrize("num_in_flight", [0, 1])
@pytest.mark.parametrize("num_away", [0, 1])
def test_a_choice_in_host_memory_keeps_a_worker_busy(num_in_flight: int, num_away: int) -> None:
    assert loop_of(Books(num_in_flight, num_away=num_away), overlap=True).busy is bool(num_in_flight or num_away)


A, B, C = ("a", 0), ("b", 0), ("c", 0)
A_AGAIN = ("a", 1)
OK: tuple[tuple[str, int], ...] = ()  # a launch that succeeds


@pytest.mark.parametrize(
    ("launches", "is_broken"),
    [
        ([[A]], False),
        ([[A], [B]], False),
        ([[A], [B], [C]], True),
        ([[A], [B], OK, [C]], False),  # a success: the worker can compute
        ([[A], [A_AGAIN], [B]], True),
        ([[A], [A_AGAIN], [("a", 2)], [("a", 3)]], False),  # one request explains it
        ([[A, B], [A_AGAIN, C], [("a", 2)]], False),
        ([[A, B], [A_AGAIN, C], [("c", 1)]], True),
        ([[A], [A], [B], [B]], False),  # the second of each was in flight when the first failed
        ([[A, B], [B], [C], [("d", 0)]], True),
        ([[A], [B], [A_AGAIN]], True),
    ],
)
def test_the_table(launches: Sequence[Sequence[tuple[str, int]]], is_broken: bool) -> None:
    row = LaunchFailures()
    for attempts in launches:
        row = row.failed(attempts) if attempts else LaunchFailures()
    assert row.is_broken == is_broken
