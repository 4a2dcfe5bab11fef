"""The executor: copies of pages, and layers that leave as they are written."""

import threading

import pytest
import torch

from model.host_copies import HostCopies
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from runtime.clock import Clock
from scheduler.execution.executor import Executor
from scheduler.execution.streams import HostStream, InlineStream
from scheduler.plan import Chunk, CopyPages, Done, Fill, Grant, LayerWritten, Plan, Spill, StageIn, StepResult
from scheduler.planning.chunks import ExtendChunk
from tests.doubles.clock import VirtualClock
from tests.scheduler.building import (
    CPU,
    MODEL,
    ManualStream,
    admitted,
    draw,
    finish,
    greedy,
    make_executor,
    make_pair,
    make_planner,
    make_req,
    prompt_chunk,
)


def filled(executor: Executor, page: int, value: float) -> None:
    executor.kv.layer(0)[page] = value


def test_a_copy_runs_behind_the_launches_before_it_and_ahead_of_the_next() -> None:
    stream = ManualStream()
    seen: list[float] = []
    executor, planner = make_pair(stream)
    first, other = make_req((1, 2, 3), greedy(4)), make_req((1, 2, 3), greedy(4), choice=1)
    assert planner.admit([first, other], 6)
    (source, _), (target, _), free = first.held.pages, other.held.pages, planner.kv_manager.pages.num_free
    filled(executor, target, -7.0)
    planner.launch(prompt_chunk(first))
    assert planner.copies.fork(first, [other]) == 0
    stream.launch([lambda: seen.append(float(executor.kv.layer(0)[target].sum()))])
    assert float(executor.kv.layer(0)[target].mean()) == -7.0
    planner.release(first)
    planner.release(other)
    finish(planner, executor)
    planner.collect()
    assert planner.kv_manager.pages.num_free == free  # the copy has not run: its pages are not reused

    written = executor.kv.layer(0)[source].clone()
    assert written.abs().sum() > 0
    stream.record().synchronize()
    assert torch.equal(executor.kv.layer(0)[target], written)
    assert seen == [float(written.sum())]
    assert planner.poll() == [] and planner.collect()
    assert planner.kv_manager.pages.counts().free == planner.kv_manager.pages.counts().total


def test_copying_nothing_is_over_behind_what_came_before_it() -> None:
    stream = ManualStream()
    executor = make_executor(stream)
    before = executor.kv.device_bytes.clone()
    executor.submit(Plan(1))
    executor.submit(CopyPages(2, (), ()))
    assert executor.poll() == []
    stream.synchronize()
    assert executor.poll() == [Done(2), StepResult(1, (), ())]
    assert torch.equal(executor.kv.device_bytes, before)


def test_kv_goes_to_host_memory_behind_the_launch_that_writes_it_and_comes_back_beside_the_next() -> None:
    kv = PagedKv(MODEL.kv_layout(4), 16, CPU)
    host, forward, staging = HostCopies(kv, 4), ManualStream(), ManualStream()
    executor = make_executor(forward, kv=kv, host=host, staging=staging)
    executor.submit(Plan(1, grants=(Grant(1, 1, 0, (3,)),), chunks=(Chunk(1, 0, (5, 6, 7), (draw(row=1),)),)))
    executor.submit(Spill(2, (3,), (2,)))
    spilled = staging.record()
    spilled.synchronize()  # runs the launch, too
    written = kv.layer(1)[3].clone()
    assert written.any() and torch.equal(host.memory.layer(1)[2], written)
    forward.synchronize()
    assert [outcome.ticket for outcome in executor.poll() if isinstance(outcome, StepResult | Done)] == [2, 1]

    kv.layer(1)[3] = 0.0
    executor.submit(Plan(3))
    executor.submit(Fill(4, (2,), (9,)))
    staging.record().synchronize()
    assert forward.queue, "it waits for a launch"
    assert torch.equal(kv.layer(1)[9], written) and not kv.layer(1)[3].any()
    assert executor.poll() == [Done(4)]


@pytest.mark.parametrize(
    "operation", [CopyPages(1, (1,), (2,)), StageIn(1, (1,), (), ()), Spill(1, (1,), (1,)), Fill(1, (1,), (1,))]
)
def test_a_failed_copy_ends_the_worker_instead_of_leaving_kv_incomplete(
    monkeypatch: pytest.MonkeyPatch, operation: CopyPages | StageIn | Spill | Fill
) -> None:
    stream = ManualStream()
    kv = PagedKv(MODEL.kv_layout(4), 16, CPU)
    host = HostCopies(kv, 4)
    executor = make_executor(stream, kv=kv, host=host)

    def broken(*_: object) -> None:
        raise ValueError("no such page")

    for name in ("copy_pages", "stage_in"):
        monkeypatch.setattr(executor.kv, name, broken)
    for name in ("spill", "fill"):
        monkeypatch.setattr(host, name, broken)
    executor.submit(operation)
    assert executor.poll() == []
    stream.record().synchronize()
    for _ in range(2):  # it is not forgotten
        with pytest.raises(RuntimeError, match="copy of KV pages has failed"):
            executor.poll()


def over(memory: type[PagedKv]) -> Executor:
    return make_executor(InlineStream(), kv=memory(MODEL.kv_layout(4), 16, CPU), max_requests=2)


@pytest.mark.parametrize("ships", [True, False])
def test_layers_are_told_as_they_are_written_where_kv_leaves(ships: bool) -> None:
    executor = make_executor(ManualStream())
    chunk = Chunk(1, 0, (5, 6, 7), (draw(row=1),))
    executor.submit(Plan(4, grants=(Grant(1, 1, 0, (3,)),), chunks=(chunk,), ships=ships))
    copy_done = executor.launches[0].copy_done
    assert executor.poll() == [] and copy_done is not None
    copy_done.synchronize()
    result = StepResult(4, ((1, 1),), (tuple(MODEL.expected_tokens((5, 6, 7), 1)),))
    assert executor.poll() == [LayerWritten(4, 0), LayerWritten(4, 1)] * ships + [result]


def test_only_pages_of_chunks_for_the_host_reach_the_twin() -> None:
    """A launch ships two prompts. Of one, a device at the peer reads the KV where it is."""
    executor = over(MirroredKv)
    planner = make_planner(executor)
    stays, goes = admitted(planner, tuple(range(6)), greedy(1)), admitted(planner, tuple(range(9)), greedy(1))
    chunks = ExtendChunk(stays, 0, 6, (stays,)), ExtendChunk(goes, 0, 8, (), to_host=True)
    launched = planner.launch(chunks, relay=False, ships=True)
    ((taken, result),) = planner.poll()
    assert taken is launched and result.error == ""
    layers = range(executor.kv.layout.num_layers)
    assert list(launched.layers) == list(layers)

    for layer in layers:
        filled = [page for page in range(1, 16) if any(executor.kv.page_bytes_view(layer, page, 1))]
        assert filled == goes.held.pages[:2]
        assert all(executor.kv.layer(layer)[page].any() for page in stays.held.pages[:2])


@pytest.mark.parametrize("memory", [PagedKv, MirroredKv])
def test_landed_pages_are_copied_to_the_device_and_then_shared(memory: type[PagedKv]) -> None:
    executor = over(memory)
    landed = executor.kv.page_bytes_view(1, 3, 1)
    landed[:] = b"\x01" * landed.nbytes
    executor.submit(StageIn(7, (3,), (3,), (5,)))
    assert executor.poll() == [Done(7)]  # one ticket, one end
    layer = executor.kv.layer(1)
    assert layer[3].any() and torch.equal(layer[3], layer[5]) and not layer[4].any()


# ---- times ----


@pytest.mark.parametrize("clock", [VirtualClock(), None])
def test_a_result_says_when_its_layers_were_computed_if_the_executor_can_tell(clock: Clock | None) -> None:
    if isinstance(clock, VirtualClock):
        clock.advance(17.0)
    executor, planner = make_pair(ManualStream(), forward_clock=clock)
    launched = planner.launch(prompt_chunk(admitted(planner)))
    _, result = finish(planner, executor)
    assert result.computed_at == launched.computed_at == (None if clock is None else clock.now())


def test_a_copy_tells_what_was_reached_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take long, and the tokens of the launch before it must not wait for it."""
    order: list[str] = []
    gate = threading.Event()
    stream = HostStream("forward", lambda: order.append("told"))
    stream.tells_late = True
    executor = make_executor(stream)
    stream.launch([lambda: order.append("launched") if gate.wait(60) else None])
    stream.record()
    copy_pages = executor.kv.copy_pages

    def copied(*pages: torch.Tensor) -> None:
        order.append("copied")
        copy_pages(*pages)

    monkeypatch.setattr(executor.kv, "copy_pages", copied)
    executor.submit(CopyPages(1, (1,), (2,)))
    gate.set()
    executor.close()
    assert order[:3] == ["launched", "told", "copied"]
