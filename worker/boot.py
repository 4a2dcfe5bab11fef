"""Starts the model, KV memory, streams, executor and planner of any worker, and runs its process.

    settings -> runner -> KV pages -> executor, warmed up -> planner -> life: (role's core and link) -> WorkerLoop

A role passes a function that makes its core and link. lives.py says why it may be called again. group_start.py has what
the ranks of a group do meanwhile.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
import zmq

from model.collectives import Collectives
from model.draft import begins_with
from model.fake import FakeRunner
from model.graphs import GraphedRunner
from model.host_copies import HostCopies
from model.kv_sizing import choose_kv_size, token_flops, window_waste
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner, Runner
from protocol.errors import BatonError, ConfigError, GroupBroken
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Role
from runtime.bus import Dealer, Wake
from runtime.clock import MonotonicClock
from runtime.curve import MARK, open_security, security_of_data
from runtime.installation import check_imports
from runtime.keys import Keys
from runtime.log import get_log, start_log
from runtime.native_stack import pool_with_stack
from runtime.process_life import EXIT_BROKEN, EXIT_CONFIG, EXIT_REFUSED, StatusPipe, StopSignal, end_process
from runtime.settings import WorkerSettings, read_arguments
from runtime.vocabulary import load_vocabulary
from scheduler.execution.executor import Executor
from scheduler.execution.grammars import AnswerGrammars
from scheduler.execution.streams import FORWARD_NICENESS, HostStream, InlineStream, Stream, lower_priority
from scheduler.execution.streams_cuda import CudaStream
from scheduler.execution.thread_choice import choose_threads, wake_beside_layers
from scheduler.execution.warm_requests import WarmUp, warm_requests
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.planner import Planner
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Costs
from scheduler.speculation.modes import launches_for
from scheduler.speculation.step_costs import measure_step_costs
from worker.departure import Departure
from worker.ending import close_all
from worker.gateway_link import GatewayLink
from worker.group_start import GroupStart
from worker.known_gateway import KnownGateway
from worker.lives import Lives
from worker.loop import WorkerLoop
from worker.memory import bytes_for_group, bytes_for_spills, draft_shape, has_twin, memory_budgets, sharers
from worker.parts import RefusedByGateway, Surroundings, WorkerBroken
from worker.registration import draft_info, registration
from worker.started import BuildRole, Started
from worker.trust import read_trust, why_refused, why_unanswered

HOST_DEMAND_TOKENS = 262_144  # KV in host memory without --max-total-tokens; all of it is touched at the start
log = get_log("worker")


def main(builds: Mapping[Role, BuildRole], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs one worker process of one of these roles, and ends it with its exit status.

    It ends while it still holds everything. What Python would free first may wait for a broken device, or in a
    collective for a rank that has ended.
    """
    status = StatusPipe()
    start_log("worker")

    try:
        check_imports()
        settings, status_fd = read_arguments(WorkerSettings, argv)
        status = StatusPipe(status_fd)
        start_log(settings.worker_id, settings.log_level)
        _serve(settings, status, builds[settings.role])
    except BatonError as error:
        end_process(_tell(error, status))


def _tell(error: BatonError, status: StatusPipe) -> int:
    """Tells the launcher and the log why the process ends. Returns its exit status."""
    is_of_group = isinstance(error, GroupBroken) or isinstance(error.__cause__, GroupBroken)
    code = GroupBroken.code if is_of_group else error.code
    status.failed(error.message, code=code, at=MonotonicClock().now())
    if is_of_group:
        log.error("the group is broken", why=error.message)
        return EXIT_BROKEN
    if isinstance(error, WorkerBroken):
        log.error("every launch fails", why=error.message)
        return EXIT_BROKEN
    log.error("cannot serve", why=error.message)
    return EXIT_REFUSED if isinstance(error, RefusedByGateway) else EXIT_CONFIG


def _serve(settings: WorkerSettings, status: StatusPipe, build: BuildRole) -> NoReturn:
    keys = read_trust(settings)
    stop, wake, clock = StopSignal(), Wake(), MonotonicClock()
    sys.setswitchinterval(1e-4)  # seconds; the forward thread must get the interpreter lock soon
    torch.set_num_threads(settings.threads)

    group = GroupStart(settings, status, stop, clock)
    if not group.open():
        end_process(0)
    status.loading("weights")
    runner = load_runner(settings, group.collectives)
    if not group.compare(runner):
        end_process(0)
    status.loading("KV memory")
    executor, kv_manager = build_executor(runner, settings, wake.set)
    status.loading("warming up")
    executor.warm_up(draft_shape(runner, settings))
    choose_decode_threads(runner, executor, settings)
    is_mirrored = has_twin(runner.device, settings)
    layout = executor.kv.layout
    costs = costs_of(runner, layout, settings)
    planner = Planner(
        kv_manager,
        executor,
        layout,
        runner.config.vocab_size,
        has_twin=is_mirrored,
        costs=costs,
        speculation=speculation_of(runner, executor, settings),
        agreement=group.agreement,
        max_graphed=runner.max_graphed,
    )

    asked = WarmUp.of(runner.device, settings.max_running_requests)
    warm_requests(executor, asked, draft_shape(runner, settings))

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    security = open_security(keys, context, log)
    started = Started(
        settings,
        0,  # each life has an instance
        planner,
        executor.kv,
        runner.fingerprint(),
        context,
        clock,
        security,
        security_of_data(security, encrypt=settings.encrypt_data),
    )
    status.loading("joining the gateway")
    ranks = group.link(executor)
    around = Surroundings(stop, wake, clock, status, ranks, KnownGateway(), security.refused)

    lives = Lives(lambda instance: begin_life(replace(started, instance=instance), runner, build, keys, around))
    device_is_broken = False
    try:
        lives.run()
    except WorkerBroken as broken:
        device_is_broken = broken.at_device
        raise
    finally:
        status.alive(clock.now())  # a pause may have ended the loop before it could tell
        waits = group.is_alone and not device_is_broken
        close_all(lives.now.link, ranks, lives.now.gateway, executor, security, context, waits=waits)
    end_process(0)


def begin_life(
    started: Started, runner: Runner, build: BuildRole, keys: Keys | None, around: Surroundings
) -> WorkerLoop:
    """The loop of a life: with a core, links and a socket to the gateway of its own."""
    settings, kv = started.settings, started.kv
    core, link, address = build(started)
    gateway_address = settings.gateway if keys is None else f"{settings.gateway}{MARK}{keys.gateway}"
    gateway = GatewayLink(
        Dealer(started.context, gateway_address, started.identity, security=started.security),
        started.clock,
        silence_may_mean=why_unanswered(settings.place, has_keys=keys is not None),
        refusal_means=why_refused(keys),
    )

    def on_ready() -> None:
        log.info(
            "ready",
            role=settings.role.value,
            kv_pages=kv.num_pages - 1,
            threads=settings.threads,
            device=str(runner.device),
            **(asdict(draft) if (draft := draft_info(settings)) else {}),
        )
        around.status.ready(kv_pages=kv.num_pages - 1)

    register = registration(started, runner, core, address)
    return WorkerLoop(core, link, gateway, register, around, on_ready, Departure(settings.drain_timeout_s))


def load_runner(settings: WorkerSettings, collectives: Collectives | None = None) -> Runner:
    """Loads the model that the settings name, or this rank's share. CheckpointError or ConfigError if it cannot be
    served."""
    if settings.fake_model:
        algorithm, context_length = settings.speculative_algorithm, settings.context_length or 4096
        num_layers = settings.speculative_num_steps if algorithm == "mtp" else 1
        draft_seed = None if algorithm is None else 1
        return FakeRunner(
            context_length=context_length,
            draft_seed=draft_seed,
            num_draft_layers=num_layers,
            collectives=collectives,
        )
    runner = ModelRunner.load(
        settings.model,
        device=settings.device,
        dtype=settings.dtype,
        context_length=settings.context_length,
        page_size=settings.page_size,
        workers_on_host=settings.workers_on_host,
        check_weights=settings.check_weights,
        attention=settings.attention_backend,
        cpu_kernels=not settings.disable_cpu_kernels,
        draft=draft_source(settings),
        collectives=collectives,
    )
    wants_graphs = settings.role is not Role.PREFILL and not settings.disable_cuda_graph
    return GraphedRunner(runner) if wants_graphs and runner.device.type == "cuda" else runner


def draft_source(settings: WorkerSettings) -> DraftSource | None:
    """Where the draft comes from, if there is to be one. ConfigError if its folder is not named."""
    algorithm, folder = settings.speculative_algorithm, settings.speculative_draft_model_path
    if algorithm is None:
        return None
    if folder is None:
        message = f"speculative_draft_model_path: got none, expected the folder of the draft for {algorithm}"
        raise ConfigError(message, param="speculative-draft-model-path")
    return DraftSource(algorithm, Path(folder), settings.speculative_num_steps)


def build_executor(runner: Runner, settings: WorkerSettings, wake: Callable[[], None]) -> tuple[Executor, KvManager]:
    """The executor, its KV memory sized by what is available, and a KV manager. ConfigError if that is too little."""
    layout = runner.kv_layout(settings.page_size)
    config = runner.config
    longest = min(config.context_length, settings.max_total_tokens or config.context_length)
    is_mirrored = has_twin(runner.device, settings)
    host_bytes = bytes_for_spills(layout, settings, longest)
    size = choose_kv_size(
        layout,
        *memory_budgets(runner, settings, longest, host_bytes),
        context_length=longest,
        max_running_requests=settings.max_running_requests,
        max_total_tokens=settings.max_total_tokens,
        demand_tokens=HOST_DEMAND_TOKENS if runner.device.type == "cpu" else None,
    )

    log.info(
        "KV memory",
        pages=size.num_pages - 1,
        tokens=layout.pool_tokens(size.num_pages),
        host_pages=host_bytes // layout.all_page_bytes,
        limited_by=size.limited_by,
        device=str(runner.device),
        shared_by=sharers(runner.device, settings),
        group_mib=bytes_for_group(runner, settings, longest) >> 20,
    )
    if waste := window_waste(config, longest):
        log.info("KV before windows is kept", share=round(waste, 2), why="a page has one number for all layers")

    forward, schedule = open_streams(runner.device, wake)
    wake_beside_layers(runner, forward)
    on_device = runner.device.type == "cuda"
    staging = CudaStream(torch.cuda.Stream(runner.device)) if is_mirrored or (host_bytes and on_device) else None
    kv = (MirroredKv if is_mirrored else PagedKv)(layout, size.num_pages, runner.device)
    num_host_pages = 1 + host_bytes // layout.all_page_bytes if host_bytes else 0
    kv_manager = KvManager(
        size.num_pages,
        layout.page_size,
        max_requests=settings.max_running_requests,
        max_context=longest,
        margin=min(settings.num_reserved_decode_tokens, layout.pool_tokens(size.num_pages) // 16),
        caches=not settings.disable_radix_cache,
        num_host_pages=num_host_pages,
        lookahead=layout.lookahead,
    )
    executor = Executor(
        runner,
        kv,
        num_rows=kv_manager.rows.num_rows,
        max_pages=kv_manager.max_pages,
        forward=forward,
        schedule=schedule,
        staging=staging,
        host=HostCopies(kv, num_host_pages) if num_host_pages else None,
        forward_clock=MonotonicClock() if runner.device.type == "cpu" else None,
        launches=launches_for(runner.draft, draft_shape(runner, settings)),
        rank=settings.place.rank,
        num_ranks=settings.place.size,
        grammars=answer_grammars(runner, settings, wake),
    )
    return executor, kv_manager


def choose_decode_threads(runner: Runner, executor: Executor, settings: WorkerSettings) -> None:
    """Measures how many threads small decodes use, and logs it. All ranks of a group do so, whatever each one has."""
    num_ranks = executor.num_ranks
    decides = torch.get_num_threads() > 1 or num_ranks > 1
    if not isinstance(runner, ModelRunner) or runner.device.type != "cpu":
        return
    if settings.role is Role.PREFILL or settings.disable_cpu_kernels or not decides:
        return
    of = (runner, runner.threads, executor.kv, executor.device.forward, MonotonicClock(), num_ranks)
    times = choose_threads(*of)
    log.info(
        "threads of decodes",
        one_up_to_rows=runner.threads.alone_up_to,
        else_threads=torch.get_num_threads(),
        ms_on_one_and_all=", ".join(f"{t.rows}: {t.alone_s * 1e3:.2f} {t.together_s * 1e3:.2f}" for t in times),
    )


def answer_grammars(runner: Runner, settings: WorkerSettings, wake: Callable[[], None]) -> AnswerGrammars:
    """Compiles grammars on one thread, makes masks on others, and those of late rows on one of low priority. The
    tokenizer is read with the first grammar."""
    folder = Path(settings.tokenizer or settings.model)
    return AnswerGrammars(
        partial(load_vocabulary, folder, runner.config.vocab_size),
        compiling=pool_with_stack(1, "grammars", lower_priority),
        masking=pool_with_stack(settings.threads, "masks"),
        beside=pool_with_stack(1, "late-masks", lower_priority),
        wake=wake,
        num_threads=settings.threads,
        rest=threading.Event().wait,
    )


def speculation_of(runner: Runner, executor: Executor, settings: WorkerSettings) -> Speculation | None:
    """How the planner uses the draft, if there is one. Its costs are measured. ConfigError if it cannot be used so."""
    if runner.draft is None:
        return None
    shape, vocab_size = draft_shape(runner, settings), runner.draft.vocab_size
    if shape.topk > vocab_size:
        expected = f"expected at most {vocab_size}, the tokens of its draft's vocabulary"
        raise ConfigError(f"--speculative-eagle-topk: got {shape.topk}, {expected}", param="speculative-eagle-topk")
    windows = [layer.mixer.window for layer in runner.config.layers if layer.mixer.window]
    if shape.topk > 1 and windows and min(windows) <= shape.num_steps:
        expected = f"expected fewer than {min(windows)}, the shortest window of a layer, with proposals in trees"
        raise ConfigError(f"--speculative-num-steps: got {shape.num_steps}, {expected}", param="speculative-num-steps")
    num_layers = runner.draft.group.lookahead
    if 1 < num_layers < shape.num_steps:
        expected = f"expected at most {num_layers}, the layers of the draft"
        raise ConfigError(f"--speculative-num-steps: got {shape.num_steps}, {expected}", param="speculative-num-steps")
    if settings.speculative_adaptive and settings.role is not Role.PREFILL:
        clock = MonotonicClock()
        costs = measure_step_costs(executor, settings.max_running_requests, shape.num_steps, clock)
        return Speculation(shape, begins_with(runner.draft), costs, clock)
    return Speculation(shape, begins_with(runner.draft))


def costs_of(runner: Runner, layout: KvLayout, settings: WorkerSettings) -> Costs | None:
    """What the two ways of preemption cost here, with --retract-to auto."""
    if settings.retract_to != "auto":
        return None
    token_bytes, moves = layout.all_page_bytes / layout.page_size, settings.role is Role.DECODE
    return Costs.on(runner.device.type, token_bytes, token_flops(runner.config), moves=moves)


def open_streams(device: torch.device, wake: Callable[[], None]) -> tuple[Stream, Stream]:
    """(forward, schedule) streams of a device."""
    if device.type == "cuda":
        return CudaStream(torch.cuda.Stream(device)), CudaStream(torch.cuda.current_stream(device))
    return HostStream("forward", wake, FORWARD_NICENESS), InlineStream()
