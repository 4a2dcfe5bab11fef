"""The unified worker: mixed launches, cancels at every step, forks of a prompt, late results."""

from typing import Any

import pytest

from protocol.messages_gateway import Assign
from tests.decode.driving import Driven, greedy, make_cluster
from tests.doubles.clock import VirtualClock
from tests.scheduler.building import ManualStream, make_executor, make_planner
from unified.worker import UnifiedWorker
from worker.policies import Policies

PARAMS = greedy(12)


def three(n: int, **options: Any) -> Driven:
    """A victim between two others."""
    cluster = make_cluster("1U", **options)
    for name, length, num_choices in (("before", 9, 1), ("victim", 33, n), ("after", 21, 2)):
        cluster.ask(name, length, PARAMS, num_choices)
    return cluster


@pytest.mark.parametrize("overlap", [True, False])
def test_a_worker_says_when_it_has_nothing_to_do(overlap: bool) -> None:
    """It sleeps then."""
    planner = make_planner(make_executor(ManualStream()))
    worker = UnifiedWorker(planner, "u", VirtualClock(), Policies(overlap=overlap, chunk_size=64))
    assert not worker.turn()
    worker.on_gateway(Assign("a", 0, (1,) * 3, greedy(5), 1, None))
    assert worker.turn()


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
    worker = UnifiedWorker(planner, "u", VirtualClock(), Policies(overlap=overlap, chunk_size=64))
    for name in ("a", "b"):
        worker.on_gateway(Assign(name, 0, (1,) * 3, greedy(1), 1, None))
    assert worker.turn() and worker.num_waiting == 1
    stream.synchronize()
    assert worker.turn()
    assert worker.num_waiting == 0 and planner.num_launches == 2
