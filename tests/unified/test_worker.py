"""The unified worker: mixed launches, cancels at every step, forks of a prompt, late results."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Assign, CancelRequest, RequestFailed
from scheduler.planning.req import Req
from tests.counting import instructions
from tests.decode.driving import Driven, Recorder, greedy, make_cluster
from tests.doubles.clock import VirtualClock
from tests.scheduler.building import ManualStream, make_executor, make_planner
from unified.worker import UnifiedWorker
from worker.policies import DEFAULTS, Policies

PARAMS = greedy(12)
LAYOUT = KvLayout.uniform(2, 1, 4, 4, "float32")


def three(n: int, **options: Any) -> Driven:
    """A victim between two others."""
    cluster = make_cluster("1U", **options)
    for name, length, num_choices in (("before", 9, 1), ("victim", 33, n), ("after", 21, 2)):
        cluster.ask(name, length, PARAMS, num_choices)
    return cluster


def decoding(worker: UnifiedWorker) -> list[Req]:
    return list(worker.planner.roster.all)


def is_waiting(worker: UnifiedWorker) -> bool:
    return any(request.assign.request_id == "victim" for request in worker._waiting)


def is_computing(worker: UnifiedWorker) -> bool:
    return any(r.assign.request_id == "victim" and r.reqs[0].num_computed > 0 for r in worker._computing)


def is_relayed(worker: UnifiedWorker) -> bool:
    """In the running batch, while the first tokens are still on their way."""
    return any(req.request_id == "victim" and not req.outputs for req in decoding(worker))


def is_running(worker: UnifiedWorker) -> bool:
    return any(req.request_id == "victim" and len(req.outputs) > 2 for req in decoding(worker))


STAGES = [is_waiting, is_computing, is_relayed, is_running]


@pytest.mark.parametrize("choice", [-1, 0, 1, 2])
@pytest.mark.parametrize(
    "stage,overlap",
    # Without overlap the first tokens are there before the next step: nothing is relayed.
    [(stage, overlap) for stage in STAGES for overlap in (True, False) if overlap or stage is not is_relayed],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_cancel_at_every_stage(stage: Callable[[UnifiedWorker], bool], choice: int, overlap: bool) -> None:
    cluster = three(3, overlap=overlap)
    cluster.run(lambda: stage(cluster.unified))
    record = Recorder(cluster)
    cluster.cancel("victim", choice)
    cluster.cancel("victim", choice)
    cluster.run()
    gone = [("victim", c) for c in ((0, 1, 2) if choice == -1 else (choice,))]
    assert [record.of(*each) for each in gone] == [[]] * len(gone)
    cluster.expect_end(*gone)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_cancel_of_the_choices_one_by_one(stage: Callable[[UnifiedWorker], bool]) -> None:
    cluster = three(3)
    cluster.run(lambda: stage(cluster.unified))
    for choice in (0, 2, 1):
        assert ("victim", 0) in cluster.unified._requests
        cluster.cancel("victim", choice)
        cluster.step()
    assert ("victim", 0) not in cluster.unified._requests
    cluster.run()
    cluster.expect_end("victim")


def test_prompts_and_decodes_share_a_launch_within_the_budget() -> None:
    cluster, mixed = three(1, chunk_size=7), 0

    def is_done() -> bool:
        nonlocal mixed
        for launch in cluster.executor(cluster.unified).launches:
            assert launch.batch is not None
            sizes = launch.batch.input.extend_lens
            assert sum(sizes) + launch.batch.input.num_decodes <= 7
            mixed += bool(sizes) and launch.batch.input.num_decodes > 0
        return cluster.at_rest()

    cluster.run(is_done)
    assert mixed > 0
    cluster.expect_end()


def test_full_prompt_pages_are_counted_once() -> None:
    cluster = make_cluster("1U", page_size=4)
    cluster.ask("victim", 33, PARAMS, 3)
    cluster.step()
    # 33 tokens are 9 pages; 8 of them are full prompt pages, which the other two choices share.
    assert cluster.unified.planner.book.pages.counts().owned == 9 + 2
    cluster.run()
    cluster.expect_end()


def test_a_turn_and_a_cancel_cost_the_same_however_many_wait() -> None:
    turns, cancels = [], []
    for num_requests in (20, 200):
        worker = UnifiedWorker(
            make_planner(make_executor(ManualStream())), "u", VirtualClock(), overlap=True, chunk_size=4
        )
        for index in range(num_requests):
            worker.on_gateway(Assign(f"r{index}", 0, (1,) * 10, greedy(5), 2, None))
        for _ in range(4):
            worker.step()  # until two launches are in flight
        assert len(worker._waiting) == num_requests - 2  # the others would not be computed yet
        turns.append(instructions(worker.step))
        cancels.append(instructions(lambda it=worker: it.on_gateway(CancelRequest("r9", 0, 1))))  # type: ignore[misc]
        cancels.append(instructions(lambda it=worker: it.on_gateway(CancelRequest("r15", 0))))  # type: ignore[misc]
    assert turns[0] == turns[1] > 0
    assert cancels[:2] == cancels[2:]


def waiting(policies: Policies = DEFAULTS) -> UnifiedWorker:
    """A worker whose rows are all taken."""
    worker = UnifiedWorker(
        make_planner(make_executor(ManualStream())), "u", VirtualClock(), overlap=True, chunk_size=64, policies=policies
    )
    for index in range(8):
        worker.on_gateway(Assign(f"first{index}", 0, (1,) * 3, greedy(5), 1, None))
        worker.step()
    assert not worker._waiting
    return worker


def names(worker: UnifiedWorker) -> list[str]:
    return [request.assign.request_id for request in worker._waiting]


def test_those_that_gave_way_come_first_in_the_order_in_which_they_came_back() -> None:
    worker = waiting()
    for name, resumes, priority in (("a", False, -1), ("b", True, 0), ("c", True, -1), ("d", False, -2)):
        worker.on_gateway(Assign(name, 0, (1,) * 3, greedy(5), 1, None, resumes=resumes, priority=priority))
    assert names(worker) == ["b", "c", "d", "a"]


def test_when_too_many_wait_a_request_is_refused_but_not_one_that_gave_way() -> None:
    worker = waiting(Policies(max_queued_requests=1))
    for name, resumes in (("a", False), ("b", False), ("c", True)):
        worker.on_gateway(Assign(name, 0, (1,) * 3, greedy(5), 1, None, resumes=resumes))
    assert names(worker) == ["c", "a"]
    (failed,) = [message for message in worker.outbox.gateway if isinstance(message, RequestFailed)]
    assert (failed.request_id, failed.code) == ("b", "queue_full")


def test_requests_that_come_together_are_not_refused_while_there_is_room() -> None:
    planner = make_planner(make_executor(ManualStream()))
    policies = Policies(max_queued_requests=1)
    worker = UnifiedWorker(planner, "u", VirtualClock(), overlap=True, chunk_size=64, policies=policies)
    for index in range(10):  # before the worker's next step; there are eight rows
        worker.on_gateway(Assign(str(index), 0, (1,) * 3, greedy(5), 1, None))
    assert names(worker) == ["8"]
    assert [each.request_id for each in worker.outbox.gateway if isinstance(each, RequestFailed)] == ["9"]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_worker_says_when_it_has_nothing_to_do(overlap: bool) -> None:
    """It sleeps then."""
    planner = make_planner(make_executor(ManualStream()))
    worker = UnifiedWorker(planner, "u", VirtualClock(), overlap=overlap, chunk_size=64)
    assert not worker.step()
    worker.on_gateway(Assign("a", 0, (1,) * 3, greedy(5), 1, None))
    assert worker.step()


def test_prompts_beside_decodes_take_less_of_a_launch() -> None:
    cluster = three(1, chunk_size=9, policies=Policies(mixed_chunk_size=4))
    alone: set[int] = set()
    beside: set[int] = set()

    def is_done() -> bool:
        for launch in cluster.executor(cluster.unified).launches:
            assert launch.batch is not None
            inp = launch.batch.input
            if inp.extend_lens:
                (beside if inp.num_decodes else alone).add(sum(inp.extend_lens))
        return cluster.at_rest()

    cluster.run(is_done)
    assert max(alone) == 9 and max(beside) == 4
    cluster.expect_end()


@pytest.mark.parametrize("overlap", [True, False])
def test_without_mixed_launches_prompts_and_decodes_take_turns(overlap: bool) -> None:
    cluster = three(2, chunk_size=7, overlap=overlap, policies=Policies(enable_mixed_chunk=False))
    kinds: dict[int, str] = {}

    def is_done() -> bool:
        for launch in cluster.unified.planner.in_flight:
            assert not (launch.chunks and launch.decodes)
            kinds[launch.ticket] = "p" if launch.chunks else "d"
        return cluster.at_rest()

    cluster.run(is_done)
    in_turns = "".join(kinds[ticket] for ticket in sorted(kinds))
    assert "pdp" in in_turns
    assert "pp" not in in_turns.lstrip("p"), "once something decodes, it waits for no more than one launch"
    cluster.expect_end()


def test_a_prompt_starts_before_its_launch_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    cluster = make_cluster("1U", clock=clock)
    worker = cluster.unified
    launch = worker.planner.launch

    def slow(*args: Any, **kwargs: Any) -> None:  # the device may have computed the prompt when this returns
        launch(*args, **kwargs)
        clock.advance(1.0)

    monkeypatch.setattr(worker.planner, "launch", slow)
    cluster.ask("only", 9, greedy(1))
    cluster.run()
    times = worker.stats().times
    assert times["queue_time"].seconds == 0.0 and times["prefill_time"].seconds >= 1.0


@pytest.mark.parametrize("overlap", [True, False])
def test_the_turn_whose_results_make_room_launches_the_request_that_waited_for_it(overlap: bool) -> None:
    """There is one row."""
    stream = ManualStream()
    planner = make_planner(make_executor(stream, max_requests=1))
    worker = UnifiedWorker(planner, "u", VirtualClock(), overlap=overlap, chunk_size=64)
    for name in ("a", "b"):
        worker.on_gateway(Assign(name, 0, (1,) * 3, greedy(1), 1, None))
    assert worker.step() and len(worker._waiting) == 1
    stream.synchronize()
    assert worker.step()
    assert len(worker._waiting) == 0 and planner.num_launches == 2
