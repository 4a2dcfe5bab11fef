"""A worker loads its model and its draft, and places its KV, as its settings say."""

import os
import threading
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from model.collectives import Collectives
from model.graphs import GraphedRunner
from model.kv_sizing import graph_bytes
from model.runner import DraftSource, ModelRunner
from protocol.errors import BatonError, ConfigError, GroupBroken, InternalError
from protocol.messages_gateway import Role
from runtime.model_config import ModelConfig
from runtime.native_stack import STACK_BYTES
from runtime.process_life import EXIT_BROKEN, EXIT_CONFIG, StatusPipe
from runtime.settings import WorkerSettings
from scheduler.draft_shape import DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import BESIDE_NICENESS, HostStream, InlineStream
from testkit.checkpoints import make_checkpoint
from tests.doubles.cuda_recorder import CudaRecorder
from tests.doubles.hash_model import FakeRunner
from tests.drafts import make_draft
from worker.boot import (
    _tell,
    answer_grammars,
    build_executor,
    choose_decode_threads,
    costs_of,
    draft_source,
    load_runner,
    open_streams,
    speculation_of,
)
from worker.memory import bytes_for_group, bytes_for_spills, has_twin, memory_budgets
from worker.parts import WorkerBroken


def settings(role: Role, **fields: Any) -> WorkerSettings:
    return WorkerSettings(worker_id="w", role=role, gateway="tcp://127.0.0.1:1", model="/m", **fields)


@pytest.mark.parametrize(
    "device, role, backend, expected",
    [
        ("cuda", Role.PREFILL, "auto", True),
        ("cuda", Role.DECODE, "zmq", True),
        ("cuda", Role.DECODE, "cuda_ipc", False),
        ("cuda", Role.UNIFIED, "auto", False),
        ("cpu", Role.DECODE, "auto", False),
    ],
)
def test_kv_on_a_device_has_a_twin_where_it_may_leave_by_the_host(
    device: str, role: Role, backend: Any, expected: bool
) -> None:
    assert has_twin(torch.device(device), settings(role, transfer_backend=backend)) == expected


def test_memory_that_graphs_keep_is_not_given_to_kv() -> None:
    """The logits of 1,024 rows of a large vocabulary and the memory of the largest graph are there for good."""
    fake = FakeRunner(vocab_size=128_000, context_length=64)
    wanted = settings(Role.UNIFIED, max_running_requests=1020)
    plain, graphed = (memory_budgets(runner, wanted, 64)[0].activation_bytes for runner in (fake, GraphedRunner(fake)))
    assert graphed - plain == graph_bytes(fake.config, "float32", lanes=1024) > 1024 * 128_000 * 4


def test_more_proposals_than_tokens_are_refused() -> None:
    wanted = settings(
        Role.UNIFIED, speculative_eagle_topk=6, speculative_num_draft_tokens=9, speculative_adaptive=False
    )
    unused = cast(Executor, None)
    with pytest.raises(ConfigError, match="--speculative-eagle-topk: got 6, expected at most 5, the tokens of"):
        speculation_of(FakeRunner(vocab_size=5, draft_seed=1), unused, wanted)
    made = speculation_of(FakeRunner(vocab_size=6, draft_seed=1), unused, wanted)
    assert made is not None and made.shape == DraftShape(num_steps=4, topk=6, num_nodes=9)


def test_more_proposals_than_a_drafts_own_vocabulary_are_refused(tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target", "llama")
    source = DraftSource("eagle3", make_draft(tmp_path / "draft", target, "eagle3", draft_vocab_size=4))
    wanted = settings(Role.UNIFIED, speculative_eagle_topk=5, speculative_num_draft_tokens=9)
    with pytest.raises(ConfigError, match="got 5, expected at most 4, the tokens of its draft"):
        speculation_of(ModelRunner.load(target, device="cpu", draft=source), cast(Executor, None), wanted)


@dataclass(frozen=True)
class WithWindow(FakeRunner):
    """The layers of the fake model, the last one with a window of 4 tokens."""

    @property
    def config(self) -> ModelConfig:
        config = super().config
        last = replace(config.layers[-1], mixer=replace(config.attention, window=4))
        return replace(config, layers=(*config.layers[:-1], last))


def test_trees_deeper_than_a_window_are_refused() -> None:
    """A tree mask has slots and no positions, so all of a tree must lie within the window."""
    runner, unused = WithWindow(draft_seed=1), cast(Executor, None)
    for topk, num_steps, is_refused in ((2, 3, False), (2, 4, True), (1, 4, False)):
        wanted = settings(
            Role.UNIFIED, speculative_eagle_topk=topk, speculative_num_steps=num_steps, speculative_adaptive=False
        )
        if is_refused:
            with pytest.raises(ConfigError, match="--speculative-num-steps: got 4, expected fewer than 4"):
                speculation_of(runner, unused, wanted)
        else:
            assert speculation_of(runner, unused, wanted) is not None


def test_the_start_tells_how_much_kv_lies_before_windows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "baton")
    for fake in (FakeRunner(num_layers=4, context_length=64), WithWindow(num_layers=4, context_length=64)):
        executor, _ = build_executor(fake, settings(Role.UNIFIED, max_total_tokens=64), lambda: None)
        executor.close()
    told = [each.__dict__["baton_fields"] for each in caplog.records if "before windows" in each.getMessage()]
    assert [fields["share"] for fields in told] == [0.23], "60 of 64 tokens in one layer of 4"


def test_more_proposals_than_draft_layers_are_refused() -> None:
    unused, draft = cast(Executor, None), FakeRunner(draft_seed=1, num_draft_layers=2)
    wanted = [settings(Role.PREFILL, speculative_num_steps=steps) for steps in (2, 3)]
    made = speculation_of(draft, unused, wanted[0])
    assert made is not None and made.hidden_size == 2 * 3 * 4
    with pytest.raises(
        ConfigError, match="--speculative-num-steps: got 3, expected at most 2, the layers of the draft"
    ):
        speculation_of(draft, unused, wanted[1])


def test_memory_that_a_draft_needs_is_not_given_to_kv() -> None:
    """A launch has logits for every token that it verifies, and graphs for as many lanes."""
    plain, draft = (FakeRunner(vocab_size=128_000, context_length=64, draft_seed=seed) for seed in (None, 1))
    wanted = settings(Role.UNIFIED, max_running_requests=60, speculative_num_steps=4, chunked_prefill_size=100)
    with_draft, without, wider = (
        memory_budgets(runner, asked, 64)[0].activation_bytes
        for runner, asked in ((draft, wanted), (plain, wanted), (plain, replace(wanted, max_running_requests=300)))
    )
    assert with_draft > wider > without and with_draft - wider == 100 * 9 * 5 * 4
    graphed = memory_budgets(GraphedRunner(draft), wanted, 64)[0].activation_bytes
    assert graphed - with_draft == graph_bytes(draft.config, "float32", lanes=5 * 64)
    of_nine = [replace(wanted, speculative_num_steps=8)]  # in verification, and below when the draft proposes
    of_nine += [replace(wanted, speculative_eagle_topk=2, speculative_num_draft_tokens=9)]
    of_nine += [replace(wanted, speculative_eagle_topk=9, speculative_num_draft_tokens=4)]
    assert len({memory_budgets(draft, asked, 64)[0].activation_bytes for asked in of_nine}) == 1


@pytest.mark.parametrize(
    "device, role, budgets",
    [
        # a part of the device, and of the host's memory, which all divide that keep a twin there
        ("cuda:1", Role.DECODE, [(400, 1, "cuda:1, of which this worker has 1/2"), (600, 5, "this host")]),
        ("cuda:1", Role.UNIFIED, [(400, 1, "cuda:1, of which this worker has 1/2")]),
        ("cpu", Role.DECODE, [(600, 5, "this host")]),
    ],
)
def test_memory_is_divided_among_those_who_share_it(
    device: str, role: Role, budgets: list[tuple[int, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.memory.available_bytes", lambda _: 600)
    monkeypatch.setattr("worker.memory.device_share", lambda _, workers: 800 // workers)
    wanted = settings(role, workers_on_host=5, workers_on_gpu=2)
    made = memory_budgets(FakeRunner(device=torch.device(device)), wanted, 64)
    assert [(budget.available_bytes, budget.workers, budget.place) for budget in made] == budgets
    assert made[0].activation_bytes > 0
    assert [budget.activation_bytes for budget in made[1:]] == [0] * len(made[1:])


@pytest.mark.parametrize(
    "chunk_size, budget, largest",
    [(100, None, 100), (100, 300, 300), (100, 30, 30), (0, None, 64), (0, 300, 300), (0, 30, 64)],
)
def test_a_forward_has_memory_for_the_prompts_of_the_largest_launch(
    chunk_size: int, budget: int | None, largest: int
) -> None:
    def needed(**fields: Any) -> int:
        return memory_budgets(FakeRunner(), settings(Role.PREFILL, **fields), 64)[0].activation_bytes

    num_bytes = needed(chunked_prefill_size=chunk_size, max_prefill_tokens=budget)
    assert num_bytes == needed(chunked_prefill_size=largest)


def test_the_weights_of_the_others_on_the_host_are_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.memory.available_bytes", lambda _: 1 << 30)
    (budget,) = memory_budgets(FakeRunner(private_weight_bytes=1000), settings(Role.UNIFIED, workers_on_host=5), 64)
    assert budget.weight_bytes == 4000


def test_the_attention_that_was_asked_for_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load(folder: str, *, attention: str, **_: Any) -> FakeRunner:
        asked.append(attention)
        return FakeRunner()

    monkeypatch.setattr("worker.boot.ModelRunner.load", load)
    for fields in ({}, {"attention_backend": "varlen"}):
        load_runner(settings(Role.DECODE, **fields))
    assert asked == ["auto", "varlen"]


@pytest.mark.parametrize("way", ["prefill", "host", "auto"])
@pytest.mark.parametrize("role", list(Role))
def test_only_workers_that_decode_have_host_memory_for_kv_that_is_preempted(
    role: Role, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.memory.available_bytes", lambda device: 1 << 33)
    fake = FakeRunner(context_length=64)
    wanted = settings(role, retract_to=way, page_size=4, max_running_requests=3, max_total_tokens=128)
    layout = fake.kv_layout(4)
    has_some = role is not Role.PREFILL and way != "prefill"
    assert bytes_for_spills(layout, wanted, 64) == has_some * 3 * 64 // 4 * layout.all_page_bytes
    executor, kv_manager = build_executor(fake, wanted, lambda: None)
    assert kv_manager.host_page_counts().total == has_some * 48 and (executor.host is not None) == has_some
    executor.close()

    costs = costs_of(fake, layout, wanted)
    assert (costs is not None) == (way == "auto")
    if costs is not None and role is Role.UNIFIED:
        moved = costs_of(fake, layout, settings(Role.DECODE, retract_to=way))
        assert moved is not None and moved.again_s > costs.again_s
    plain, kept = (memory_budgets(fake, wanted, 64, num_bytes)[0].usable_bytes for num_bytes in (0, 1 << 20))
    assert plain - kept == 1 << 20


def test_a_draft_needs_a_folder() -> None:
    assert draft_source(settings(Role.UNIFIED)) is None
    named = settings(Role.UNIFIED, speculative_algorithm="eagle", speculative_draft_model_path="/drafts/one")
    assert draft_source(named) == DraftSource("eagle", Path("/drafts/one"), named.speculative_num_steps)
    with pytest.raises(ConfigError, match="got none, expected the folder of the draft for eagle"):
        draft_source(replace(named, speculative_draft_model_path=None))


@pytest.mark.parametrize(
    "role, num_threads, more, measured",
    [
        (Role.UNIFIED, 2, {}, True),
        (Role.DECODE, 2, {}, True),
        (Role.DECODE, 1, {}, False),
        (Role.PREFILL, 2, {}, False),
        (Role.UNIFIED, 2, {"disable_cpu_kernels": True}, False),
    ],
)
def test_threads_are_measured_where_decodes_have_a_choice(
    tmp_path: Path, role: Role, num_threads: int, more: dict[str, Any], measured: bool
) -> None:
    folder = str(make_checkpoint(tmp_path, "qwen3"))
    wanted = replace(settings(role, max_total_tokens=64, context_length=64, **more), model=folder)
    runner = load_runner(wanted)
    executor, _ = build_executor(runner, wanted, lambda: None)
    forwards, before = 0, torch.get_num_threads()
    assert isinstance(runner, ModelRunner)
    whole = runner.decoder.forward

    def counted(*args: Any) -> torch.Tensor:
        nonlocal forwards
        forwards += 1
        return whole(*args)

    counting = replace(runner, decoder=replace(runner.decoder))
    object.__setattr__(counting.decoder, "forward", counted)
    torch.set_num_threads(num_threads)
    try:
        choose_decode_threads(counting, executor, wanted)
    finally:
        torch.set_num_threads(before)
        executor.close()
    assert forwards == (24 if measured else 0)


@dataclass(frozen=True)
class Ranks:
    """Collectives that are only counted."""

    rank: int = 0
    size: int = 4


@pytest.mark.parametrize(
    "ranks, fields, num_bytes",
    [
        (2, {"chunked_prefill_size": 100}, 12_800),
        (4, {"chunked_prefill_size": 100}, 25_600),
        (4, {"chunked_prefill_size": 100, "max_prefill_tokens": 300}, 76_800),
        (4, {"chunked_prefill_size": 0}, 16_384),  # a whole prompt of 64 tokens
        (4, {"chunked_prefill_size": 20, "max_running_requests": 48}, 12_288),  # every row decodes one token
        (4, {"chunked_prefill_size": 20, "max_running_requests": 48, "speculative_num_steps": 3}, 49_152),
    ],
)
def test_rows_that_ranks_give_one_another_are_not_given_to_kv(ranks: int, fields: Any, num_bytes: int) -> None:
    """Four tensors of the rows of all ranks, 16 bytes a row: the fake model has four hidden values in float32."""
    wanted = settings(Role.UNIFIED, **{"max_running_requests": 8, **fields})
    alone = FakeRunner(context_length=64, draft_seed=1 if "speculative_num_steps" in fields else None)
    grouped = replace(alone, collectives=cast(Collectives, Ranks(size=ranks)))
    assert (bytes_for_group(grouped, wanted, 64), bytes_for_group(alone, wanted, 64)) == (num_bytes, 0)
    with_ranks, without = (memory_budgets(runner, wanted, 64)[0].activation_bytes for runner in (grouped, alone))
    assert with_ranks - without == num_bytes


def test_graphs_of_a_group_keep_rows_of_all_ranks() -> None:
    """Those of 64 lanes, beside the 100 of the largest forward."""
    wanted = settings(Role.UNIFIED, max_running_requests=60, chunked_prefill_size=100)
    grouped = FakeRunner(context_length=64, collectives=cast(Collectives, Ranks()))
    assert bytes_for_group(GraphedRunner(grouped), wanted, 64) == 4 * 4 * (100 + 64) * 16


def test_the_start_tells_what_the_ranks_of_a_group_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.memory.available_bytes", lambda device: 1 << 33)
    wanted = settings(Role.UNIFIED, chunked_prefill_size=1 << 16, max_running_requests=3, max_total_tokens=128)
    caplog.set_level("INFO", "baton")
    for ranks in (None, Ranks()):
        fake = FakeRunner(context_length=64, collectives=cast(Collectives, ranks))
        executor, _ = build_executor(fake, wanted, lambda: None)
        executor.close()
    (first, second) = [
        record.__dict__["baton_fields"] for record in caplog.records if record.getMessage() == "KV memory"
    ]
    assert (first["group_mib"], second["group_mib"]) == (0, 16)


def caused(error: BatonError, cause: BatonError) -> BatonError:
    """`error`, raised from `cause`."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, code, status",
    [
        (GroupBroken("rank 1 is gone"), "group_broken", EXIT_BROKEN),
        (caused(WorkerBroken("the ranks stop"), GroupBroken("rank 1 is gone")), "group_broken", EXIT_BROKEN),
        (caused(InternalError("the first forward"), GroupBroken("rank 1 is gone")), "group_broken", EXIT_BROKEN),
        (WorkerBroken("three launches"), "worker_broken", EXIT_BROKEN),
        (ConfigError("no such model"), ConfigError.code, EXIT_CONFIG),
    ],
)
def test_a_broken_group_is_told_from_a_broken_worker(error: BatonError, code: str, status: int) -> None:
    """So that the launcher names the rank that began."""
    reading, writing = os.pipe()
    assert _tell(error, StatusPipe(writing)) == status
    told = os.read(reading, 1000).decode()
    os.close(reading)
    os.close(writing)
    assert f'"code": "{code}"' in told and error.message in told


def stack_and_niceness(pool: Pool) -> tuple[int, int]:
    """Of a live thread of the pool: its stack is the mapping in which its control block lies."""

    def look() -> tuple[int, int]:
        address, niceness = threading.get_ident(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, _, end = line.partition(" ")[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return int(end, 16) - int(start, 16), niceness
        raise AssertionError("the address is mapped")

    return pool.submit(look).result()


def test_they_have_deep_stacks_and_those_that_no_launch_waits_for_have_low_priority() -> None:
    settings = WorkerSettings(worker_id="w", role=Role.UNIFIED, gateway="tcp://127.0.0.1:1", model="/m", threads=2)
    grammars = answer_grammars(FakeRunner(), settings, lambda: None)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        threads = [stack_and_niceness(pool) for pool in (grammars.masking, grammars.compiling, grammars.beside)]
    finally:
        grammars.close()
    assert all(stack >= STACK_BYTES for stack, _ in threads)
    assert [niceness for _, niceness in threads] == [mine, *[min(19, mine + BESIDE_NICENESS)] * 2]
    assert grammars.num_threads == 2


def test_forwards_of_a_gpu_have_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule stream is the one that is current on the scheduler's thread, where it makes inputs."""
    CudaRecorder.installed(monkeypatch)
    numbers = list[int]()
    for stream in open_streams(torch.device("cuda"), lambda: None):
        stream.launch([lambda: numbers.append(torch.cuda.current_stream().number)])  # type: ignore[attr-defined]
    assert numbers == [1, 0], "the streams on which forwards and schedule work run; 0 is the thread's own"


def test_forwards_of_a_cpu_have_a_thread_of_their_own() -> None:
    forward, schedule = open_streams(torch.device("cpu"), lambda: None)
    assert isinstance(forward, HostStream) and isinstance(schedule, InlineStream)
    forward.close()
