"""Prompts that wait at a prefill or a unified worker: their order, how many there may be, and what they cost."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import Assign, CancelRequest, RequestFailed
from protocol.messages_handoff import CancelJob, JobFailed
from runtime.settings import SchedulePolicy
from tests.counting import instructions
from tests.doubles.clock import VirtualClock
from tests.prefill.driving import PROMPT, Bench
from tests.scheduler.building import ManualStream, greedy, make_executor, make_planner
from unified.worker import UnifiedWorker
from worker.policies import DEFAULTS, Policies
from worker.prompts import Prompts


@dataclass
class Asked:
    """A worker with eight rows that has been asked by numbers. Its launches end on command."""

    worker: Any
    prompts: Prompts[Any]
    ask: Callable[..., Any]  # (number, prompt, **fields of the Assign)
    cancel: Callable[[int], None]
    refused: Callable[[], list[tuple[str, str]]]  # (error code, error)

    def line(self) -> list[str]:
        """Those that wait, in their order, as the first of the line leaves one by one."""
        keys = list[str]()
        while (request := self.prompts.waiting.first()) is not None:
            keys.append(request.assign.request_id)
            self.cancel(int(keys[-1][1:]))
        return keys

    def crowded(self) -> "Asked":
        """All rows are taken."""
        for number in range(1, 9):
            self.ask(number)
            self.worker.turn()
        assert self.prompts.num_waiting == 0
        return self


def at_prefill(policies: Policies) -> Asked:
    bench = Bench(chunk_size=policies.chunk_size, policies=policies)
    return Asked(
        bench.worker,
        bench.worker.prompts,
        bench.job,
        lambda number: bench.worker.on_peer(7, CancelJob(number)),
        lambda: [
            (message.code, message.message) for message in bench.sent(JobFailed) if isinstance(message, JobFailed)
        ],
    )


def at_unified(policies: Policies) -> Asked:
    worker = UnifiedWorker(make_planner(make_executor(ManualStream())), "u", VirtualClock(), policies)

    def ask(number: int, prompt: tuple[int, ...] = PROMPT, n: int = 1, **more: Any) -> None:
        worker.on_gateway(Assign(f"r{number}", 0, prompt, greedy(5), n, None, **more))

    def refused() -> list[tuple[str, str]]:
        return [
            (message.code, message.message) for message in worker.outbox.gateway if isinstance(message, RequestFailed)
        ]

    return Asked(worker, worker.prompts, ask, lambda number: worker.on_gateway(CancelRequest(f"r{number}", 0)), refused)


Make = Callable[[Policies], Asked]
ROLES = pytest.mark.parametrize(
    "make, code", [(at_prefill, "prefill_queue_full"), (at_unified, "queue_full")], ids=["prefill", "unified"]
)
LARGE = replace(DEFAULTS, chunk_size=256)


@ROLES
def test_a_turn_and_a_cancel_cost_the_same_however_many_wait(make: Make, code: str) -> None:
    turns, cancels = [], []
    for num_requests in (20, 200):
        asked = make(Policies(chunk_size=4))
        for number in range(1, 1 + num_requests):
            asked.ask(number, n=2)
        for _ in range(4):
            asked.worker.turn()  # until two launches are in flight
        assert len(asked.prompts.waiting) == num_requests - 2  # the others would not be computed yet
        turns.append(instructions(asked.worker.turn))
        cancels.append(instructions(lambda cancel=asked.cancel: cancel(15)))  # type: ignore[misc]
    assert turns[0] == turns[1] > 0
    assert cancels[0] == cancels[1] > 0


@ROLES
def test_those_that_were_preempted_come_first_in_the_order_in_which_they_came_back(make: Make, code: str) -> None:
    asked = make(LARGE).crowded()
    for number, resumes, priority in ((11, False, -1), (12, True, 0), (13, True, -1), (14, False, -2), (15, True, 0)):
        asked.ask(number, resumes=resumes, priority=priority)
    assert asked.line() == ["r12", "r13", "r15", "r14", "r11"]


@ROLES
@pytest.mark.parametrize("policy, expected", [("fcfs", ["r11", "r12"]), ("lpm", ["r12", "r11"])])
def test_the_longest_cached_prefix_goes_first_if_the_policy_says_so(
    make: Make, code: str, policy: SchedulePolicy, expected: list[str]
) -> None:
    asked = make(replace(LARGE, schedule_policy=policy))
    kv_manager = asked.worker.planner.kv_manager
    kv_manager._cache = None
    kv_manager.num_cached = lambda key, *_, **__: len(PROMPT) if key.ids[:4] == bytes([9, 0, 0, 0]) else 0
    asked.crowded()
    asked.ask(11)
    asked.ask(12, prompt=(9, *PROMPT))
    assert asked.line() == expected


@ROLES
def test_a_prompt_whose_computation_is_wanted_whole_counts_as_not_cached(make: Make, code: str) -> None:
    """Only the computation of a prompt gives the log-probabilities of its tokens."""
    asked = make(replace(LARGE, schedule_policy="lpm"))
    asked.worker.planner.kv_manager.num_cached = lambda key, *_, **__: len(PROMPT) if key else 0
    asked.worker.planner.kv_manager._cache = None
    asked.crowded()
    asked.ask(11, prompt_logprobs=PromptLogprobsAsked())
    asked.ask(12)
    assert asked.line() == ["r12", "r11"]


@ROLES
def test_when_too_many_wait_a_request_is_refused_but_not_one_that_was_preempted(make: Make, code: str) -> None:
    asked = make(replace(LARGE, max_queued_requests=2)).crowded()
    for number in (11, 12, 13):
        asked.ask(number)
    asked.ask(14, resumes=True)
    assert asked.refused() == [(code, "the worker's waiting line is full (--max-queued-requests 2)")]
    assert asked.line() == ["r14", "r11", "r12"]


@ROLES
def test_requests_that_come_together_are_not_refused_while_there_is_room(make: Make, code: str) -> None:
    asked = make(replace(LARGE, max_queued_requests=1))
    for number in range(1, 11):  # before the worker's next step; there are eight rows
        asked.ask(number)
    assert asked.refused() == [(code, "the worker's waiting line is full (--max-queued-requests 1)")]
    assert asked.line() == ["r9"]
