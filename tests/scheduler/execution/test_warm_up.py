"""Warming up: the runner computes a chunk and a decode, on padding only, before anything is launched."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from model.fake_draft import FakeDraft
from model.graphs import GraphedRunner, Lanes
from model.host_copies import HostCopies
from model.inputs import ModelInput
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from protocol.errors import InternalError
from protocol.messages_gateway import Role
from protocol.messages_group import StepShape
from runtime.settings import WorkerSettings
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import Event, InlineStream, Segment, Stream
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import CPU, admitted, make_executor, make_pair, prompt_chunk
from worker.boot import load_runner, open_streams


def executor_of(seen: list[ModelInput], forward: Stream, page_size: int = 4) -> Executor:
    runner = FakeRunner(vocab_size=97, context_length=64, before_forward=seen.append)
    return make_executor(forward, runner=runner, kv=PagedKv(runner.kv_layout(page_size), 64))


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_chunk_and_a_decode_run_on_page_0_only(page_size: int) -> None:
    seen: list[ModelInput] = []
    forward, _ = open_streams(CPU, lambda: None)
    executor = executor_of(seen, forward, page_size)
    for layer in range(executor.kv.layout.num_layers):
        executor.kv.layer(layer).fill_(7.0)
    executor.warm_up()
    assert [(inp.extend_lens, inp.num_decodes) for inp in seen] == [((1,), 0), ((), 1)]
    for inp in seen:
        assert int(inp.slots_T.max()) < page_size and not inp.page_table_BP.any()
    for layer in range(executor.kv.layout.num_layers):
        assert (executor.kv.layer(layer)[1:] == 7.0).all()
        assert (executor.kv.layer(layer)[0] == 0.0).all()
    assert not executor.launches and executor.poll() == [] and not executor.page_table.req_to_page.any()
    executor.close()


@pytest.mark.parametrize("size", [1, 3])
def test_all_ranks_run_the_same_forwards(size: int) -> None:
    seen: list[ModelInput] = []
    executor = executor_of(seen, InlineStream())
    executor.num_ranks = size
    executor.warm_up()
    assert [inp.step for inp in seen] == [StepShape(0, (1,) * size)] * 2


def test_a_draft_runs_behind_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    run_layer = FakeDraft.run_layer

    def watched(draft: FakeDraft, index: int, inp: ModelInput, *rest: Any) -> Any:
        seen.append((inp.extend_lens, inp.num_decodes))
        return run_layer(draft, index, inp, *rest)

    monkeypatch.setattr(FakeDraft, "run_layer", watched)
    runner = FakeRunner(vocab_size=97, context_length=64, draft_seed=1)
    executor = make_executor(InlineStream(), runner=runner, kv=PagedKv(runner.kv_layout(4), 8))
    executor.warm_up()
    assert seen == [((1,), 0), ((), 1)]
    for layer in range(executor.kv.layout.num_layers):
        assert not executor.kv.layer(layer).any()


def test_copies_to_the_twin_and_back_are_compiled_for_every_layer() -> None:
    copied: list[tuple[int, list[int]]] = []

    def copy(source_LPW: Tensor, target_LPW: Tensor, pages_N: Tensor, to_N: Tensor) -> None:
        copied.append((len(source_LPW), pages_N.tolist()))

    fake, stream = FakeRunner(vocab_size=97, context_length=64), InlineStream()
    kv = MirroredKv(fake.kv_layout(4), 8, CPU, copy)
    make_executor(stream, runner=fake, kv=kv, max_requests=1).warm_up()
    assert copied == [(1, [0])] * kv.layout.num_layers + [(kv.layout.num_layers, [0])]


def test_copies_to_host_memory_and_back_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[str, list[int], list[int]]] = []
    kv = PagedKv(FakeRunner(vocab_size=97, context_length=64).kv_layout(4), 8, CPU)
    host = HostCopies(kv, 3)
    for name in ("spill", "fill"):
        monkeypatch.setattr(host, name, lambda a, b, name=name: copied.append((name, a.tolist(), b.tolist())))
    make_executor(InlineStream(), kv=kv, host=host, max_requests=1).warm_up()
    assert copied == [("spill", [0], [0]), ("fill", [0], [0])]


def test_a_first_forward_that_fails_is_an_error_before_ready() -> None:
    def fail(inp: ModelInput) -> None:
        raise RuntimeError("no kernel image")

    forward, _ = open_streams(CPU, lambda: None)
    executor = make_executor(forward, runner=FakeRunner(vocab_size=97, context_length=64, before_forward=fail))
    with pytest.raises(InternalError, match=r"first forward .* no kernel image"):
        executor.warm_up()
    executor.close()


def test_graphs_are_captured_for_the_largest_batch_and_serve_the_launches() -> None:
    fake = FakeRunner(vocab_size=97, context_length=64)
    runner = GraphedRunner(fake, lambda run: run)
    forward, _ = open_streams(CPU, lambda: None)
    executor, planner = make_pair(forward, runner=runner, max_requests=3)
    executor.warm_up()
    prompts = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10)]
    reqs = [admitted(planner, prompt, name=str(prompt)) for prompt in prompts]
    tokens = []
    for _ in range(4):
        decodes = planner.decodes()
        planner.launch([] if decodes else [chunk for req in reqs for chunk in prompt_chunk(req)], decodes)
        if not decodes:
            planner.join(reqs)
        forward.record().synchronize()
        ((_, result),) = planner.poll()
        assert result.error == ""
        tokens.append([token for run in result.tokens for token in run])
    assert [list(outputs) for outputs in zip(*tokens, strict=True)] == [fake.expected_tokens(p, 4) for p in prompts]
    assert runner.num_replays == 3
    executor.close()


def test_graphs_are_captured_for_all_tokens_that_a_launch_verifies() -> None:
    runner = GraphedRunner(FakeRunner(vocab_size=97, context_length=64, draft_seed=1), lambda run: run)
    kv = PagedKv(runner.kv_layout(4), 8)
    executor = make_executor(InlineStream(), runner=runner, kv=kv, max_requests=3)
    executor.warm_up(DraftShape(4))
    with torch.inference_mode():
        for num_rows in (20, 21):
            runner.forward_with_features(Lanes(num_rows, 1, 4, CPU).input, kv)
    assert runner.num_replays == 1


TREE = DraftShape(2, topk=2, num_nodes=4)


def test_nodes_of_a_tree_run_and_are_captured_too() -> None:
    seen: list[ModelInput] = []
    executor = executor_of(seen, InlineStream())
    executor.warm_up(TREE)
    assert [(inp.extend_lens, inp.num_decodes, inp.tree_mask is not None) for inp in seen] == [
        ((1,), 0, False),
        ((), 1, False),
        ((), 1, True),
    ]

    node = Lanes(1, 1, 4, CPU, trees=True).input
    for shape in (NO_DRAFT, TREE):
        runner = GraphedRunner(FakeRunner(vocab_size=97, context_length=64), lambda run: run)
        kv = PagedKv(runner.kv_layout(4), 8)
        make_executor(InlineStream(), runner=runner, kv=kv, max_requests=3).warm_up(shape)
        with torch.inference_mode():
            runner.forward(node, kv)
        assert runner.num_replays == shape.is_tree


@pytest.mark.parametrize("role, graphs", [(Role.DECODE, True), (Role.UNIFIED, True), (Role.PREFILL, False)])
def test_who_decodes_on_a_gpu_has_graphs_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, role: Role, graphs: bool
) -> None:
    for device in ("cpu", "cuda"):
        for wanted in (True, False):
            loaded = FakeRunner(device=torch.device(device))
            monkeypatch.setattr("worker.boot.ModelRunner.load", lambda *a, loaded=loaded, **k: loaded)
            settings = WorkerSettings(
                worker_id="w", role=role, gateway="tcp://x:1", model="m", disable_cuda_graph=not wanted
            )
            runner = load_runner(settings)
            assert isinstance(runner, GraphedRunner) == (graphs and wanted and device == "cuda")


def test_it_waits_for_what_the_schedule_stream_has_filled() -> None:
    """On a GPU, weights are merged and KV memory is zeroed on the schedule stream, and take their time."""
    calls: list[str] = []

    class Forward(InlineStream):
        def wait(self, event: Event) -> None:
            calls.append("wait")

        def launch(self, segments: Sequence[Segment], *used: object) -> None:
            calls.append("launch")
            super().launch(segments, *used)

    executor_of([], Forward()).warm_up()
    assert calls == ["wait", "launch"]
