"""Warming up: the runner computes a chunk and a decode, on padding only, before anything is launched."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model.graphs import GraphedRunner
from model.inputs import ModelInput
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from protocol.errors import InternalError
from protocol.messages_gateway import Role
from runtime.settings import WorkerSettings
from scheduler.engine import Engine
from scheduler.forward_batch import ExtendChunk, LaunchPlan
from scheduler.kv_book import KvBook
from scheduler.schedule_batch import ScheduleBatch
from scheduler.streams import Event, Segment, Stream
from scheduler.streams_host import InlineStream
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.building import CPU, admitted, make_engine
from worker.boot import load_runner, open_streams


def engine_of(seen: list[ModelInput], forward: Stream, page_size: int = 4) -> Engine:
    return make_engine(
        forward, runner=FakeRunner(vocab_size=97, context_length=64, before_forward=seen.append), page_size=page_size
    )


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_chunk_and_a_decode_run_on_page_0_only(page_size: int) -> None:
    seen: list[ModelInput] = []
    forward, _ = open_streams(CPU, lambda: None)
    engine = engine_of(seen, forward, page_size)
    for layer in range(engine.kv.layout.num_layers):
        engine.kv.layer(layer).fill_(7.0)
    engine.warm_up()
    assert [(inp.extend_lens, inp.num_decodes) for inp in seen] == [((1,), 0), ((), 1)]
    for inp in seen:
        assert int(inp.slots_T.max()) < page_size and not inp.page_table_BP.any()
    for layer in range(engine.kv.layout.num_layers):
        assert (engine.kv.layer(layer)[1:] == 7.0).all()
        assert (engine.kv.layer(layer)[0] == 0.0).all()
    assert engine.book.pages.num_free == engine.book.pages.num_pages - 1 and not engine.in_flight
    engine.close()


def test_copies_to_the_twin_and_back_are_compiled_for_every_layer() -> None:
    copied: list[tuple[int, list[int]]] = []

    def copy(source_LPW: Tensor, target_LPW: Tensor, pages_N: Tensor) -> None:
        copied.append((len(source_LPW), pages_N.tolist()))

    fake, stream = FakeRunner(vocab_size=97, context_length=64), InlineStream()
    kv = MirroredKv(fake.kv_layout(4), 8, CPU, copy)
    book = KvBook(kv.num_pages, kv.layout.page_size, max_requests=1, max_context=64)
    Engine(fake, kv, book, forward=stream, schedule=stream, device=CPU).warm_up()
    assert copied == [(1, [0])] * kv.layout.num_layers + [(kv.layout.num_layers, [0])]


def test_a_first_forward_that_fails_is_an_error_before_ready() -> None:
    def fail(inp: ModelInput) -> None:
        raise RuntimeError("no kernel image")

    forward, _ = open_streams(CPU, lambda: None)
    engine = make_engine(forward, runner=FakeRunner(vocab_size=97, context_length=64, before_forward=fail))
    with pytest.raises(InternalError, match=r"first forward .* no kernel image"):
        engine.warm_up()
    engine.close()


def test_graphs_are_captured_for_the_largest_batch_and_serve_the_launches() -> None:
    fake = FakeRunner(vocab_size=97, context_length=64)
    runner = GraphedRunner(fake, lambda run: run)
    forward, schedule = open_streams(CPU, lambda: None)
    kv = PagedKv(fake.kv_layout(4), 64)
    book = KvBook(64, 4, max_requests=3, max_context=64)
    engine = Engine(runner, kv, book, forward=forward, schedule=schedule, device=CPU, debug=True)
    engine.warm_up()
    prompts = [(1, 2, 3), (4, 5), (6, 7, 8, 9, 10)]
    reqs = [admitted(engine, prompt, name=str(prompt)) for prompt in prompts]
    chunks = tuple(ExtendChunk(req, 0, req.prompt_len, (req,)) for req in reqs)
    plan, tokens = LaunchPlan(chunks, None), []
    for _ in range(4):
        launch = engine.launch(plan)
        forward.record().synchronize()
        assert engine.take_completed() is launch and launch.error is None
        tokens.append([token for _, token in engine.tokens(launch)])
        plan = LaunchPlan((), plan.running or ScheduleBatch.launched(reqs, CPU))
    assert [list(each) for each in zip(*tokens, strict=True)] == [fake.expected_tokens(p, 4) for p in prompts]
    assert runner.num_replays == 3
    engine.close()


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
            found = load_runner(settings)
            assert isinstance(found, GraphedRunner) == (graphs and wanted and device == "cuda")


def test_it_waits_for_what_the_schedule_stream_has_filled() -> None:
    """On a GPU, weights are merged and KV memory is zeroed on the schedule stream, and take their time."""
    calls: list[str] = []

    class Forward(InlineStream):
        def wait(self, event: Event) -> None:
            calls.append("wait")

        def launch(self, segments: Sequence[Segment], *used: object) -> None:
            calls.append("launch")
            super().launch(segments, *used)

    engine_of([], Forward()).warm_up()
    assert calls == ["wait", "launch"]


def test_it_comes_before_the_first_launch_only() -> None:
    engine = engine_of([], InlineStream())
    engine.num_launches = 1
    with pytest.raises(AssertionError, match="warming up"):
        engine.warm_up()
