"""Starts the model, KV memory, streams, executor and planner of any worker, and runs its process.

    settings -> runner -> KV pages -> executor, warmed up -> planner -> (role's core and link) -> WorkerLoop

A role passes a function that makes its core and link.
"""

import os
import random
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import zmq

from model.draft import begins_with
from model.fake import FakeRunner
from model.graphs import GraphedRunner
from model.host_copies import HostCopies
from model.kv_sizing import choose_kv_size, token_flops
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import DraftSource, ModelRunner, Runner
from protocol.errors import BatonError, ConfigError
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import DraftInfo, RankEndpoint, Register, Role, WorkerAddress
from runtime.address import is_loopback, refuse_exposed
from runtime.bus import Dealer, Wake
from runtime.clock import MonotonicClock
from runtime.curve import MARK, NO_HANDSHAKE, UNKNOWN_KEY, Security, open_security, security_of_data, without_secret
from runtime.installation import check_imports
from runtime.keys import ALLOWED, GATEWAY, Keys, read_keys
from runtime.log import get_log, start_log
from runtime.process_life import EXIT_BROKEN, EXIT_CONFIG, EXIT_REFUSED, StatusPipe, StopSignal
from runtime.settings import WorkerSettings, read_arguments
from scheduler.execution.executor import Executor
from scheduler.execution.streams import FORWARD_NICENESS, HostStream, InlineStream, Stream
from scheduler.execution.streams_cuda import CudaStream
from scheduler.planning.kv_book import KvBook
from scheduler.planning.planner import Planner
from scheduler.planning.speculation import Speculation
from scheduler.planning.spills import Costs
from scheduler.speculation.modes import launches_for
from scheduler.speculation.step_costs import measure_step_costs
from worker.ending import close_all
from worker.loop import Core, PeerLink, RefusedByGateway, WorkerBroken, WorkerLoop
from worker.memory import bytes_for_spills, draft_shape, has_twin, memory_budgets, sharers
from worker.policies import Policies

HOST_DEMAND_TOKENS = 262_144  # KV in host memory without --max-total-tokens; all of it is touched at the start
UNANSWERED = {  # by whether the worker has keys: why a gateway may not answer
    True: "the gateway may have no --keys, or its list may lack this worker's key",
    False: "the gateway may have --keys; then it answers only workers with keys",
}
UNGUARDED = ("nixl", "ray")  # backends whose own connections carry KV
log = get_log("worker")


@dataclass(frozen=True)
class Started:
    """The parts from which a role builds its core and link."""

    settings: WorkerSettings
    instance: int
    identity: bytes
    planner: Planner
    kv: PagedKv
    fingerprint: Fingerprint
    context: "zmq.Context[zmq.Socket[bytes]]"
    clock: MonotonicClock
    security: Security  # of sockets for messages
    data_security: Security  # of sockets for KV

    @property
    def policies(self) -> Policies:
        """How the worker schedules."""
        settings = self.settings
        return Policies(
            schedule_policy=settings.schedule_policy,
            max_queued_requests=settings.max_queued_requests,
            max_prefill_tokens=settings.max_prefill_tokens,
            enable_mixed_chunk=settings.enable_mixed_chunk,
        )


BuildRole = Callable[[Started], tuple[Core, PeerLink, WorkerAddress]]


def main(build: BuildRole, argv: Sequence[str] | None = None) -> int:
    """Runs one worker process. Returns its exit status."""
    status = StatusPipe()
    start_log("worker")

    try:
        check_imports()
        settings, status_fd = read_arguments(WorkerSettings, argv)
        status = StatusPipe(status_fd)
        start_log(settings.worker_id, settings.log_level)
        _serve(settings, status, build)
    except BatonError as error:
        status.failed(error.message, code=error.code)
        if isinstance(error, WorkerBroken):
            log.error("every launch fails", why=error.message)
            return EXIT_BROKEN
        log.error("cannot serve", why=error.message)
        return EXIT_REFUSED if isinstance(error, RefusedByGateway) else EXIT_CONFIG
    return 0


def _serve(settings: WorkerSettings, status: StatusPipe, build: BuildRole) -> None:
    keys = read_trust(settings)
    stop = StopSignal()
    wake = Wake()
    sys.setswitchinterval(1e-4)  # seconds; the forward thread must get the interpreter lock soon
    torch.set_num_threads(settings.threads)

    status.loading("weights")
    runner = load_runner(settings)
    status.loading("KV memory")
    executor, book = build_executor(runner, settings, wake.set)
    status.loading("warming up")
    executor.warm_up(draft_shape(runner, settings))
    is_mirrored = has_twin(runner.device, settings)
    layout = executor.kv.layout
    costs = costs_of(runner, layout, settings)
    planner = Planner(
        book,
        executor,
        layout,
        runner.config.vocab_size,
        has_twin=is_mirrored,
        costs=costs,
        speculation=speculation_of(runner, executor, settings),
    )

    instance = random.SystemRandom().getrandbits(62)
    identity = f"{settings.worker_id}#{instance}".encode()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    clock = MonotonicClock()
    security = open_security(keys, context, log)
    data_security = security_of_data(security, encrypt=settings.encrypt_data)
    started = Started(
        settings,
        instance,
        identity,
        planner,
        executor.kv,
        runner.fingerprint(),
        context,
        clock,
        security,
        data_security,
    )
    core, link, address = build(started)
    gateway_address = settings.gateway if keys is None else f"{settings.gateway}{MARK}{keys.gateway}"
    gateway = Dealer(context, gateway_address, identity, security=security)

    def on_ready() -> None:
        log.info(
            "ready",
            role=settings.role.value,
            kv_pages=executor.kv.num_pages - 1,
            threads=settings.threads,
            device=str(runner.device),
            **(asdict(draft) if (draft := draft_info(settings)) else {}),
        )
        status.ready(kv_pages=executor.kv.num_pages - 1)

    status.loading("joining the gateway")
    loop = WorkerLoop(
        core,
        link,
        gateway,
        registration(started, runner, core, address),
        wake,
        stop,
        clock,
        on_ready,
        status.alive,
        spin=runner.device.type == "cuda",
        refused_connections=security.refused,
        silence_may_mean=UNANSWERED[keys is not None],
        refusal_means=why_refused(keys),
    )

    device_is_broken = False
    try:
        loop.run()
    except WorkerBroken as broken:
        device_is_broken = broken.at_device
        raise
    finally:
        close_all(link, gateway, executor, security, context, device_is_broken=device_is_broken)
        wake.close()


def registration(started: Started, runner: Runner, core: Core, address: WorkerAddress) -> Register:
    """What the worker tells the gateway of itself."""
    settings, kv = started.settings, started.kv
    capacity = kv.layout.pool_tokens(kv.num_pages)
    shown = tuple(RankEndpoint(without_secret(rank.data)) for rank in address.ranks)
    return Register(
        address=replace(address, ranks=shown),  # the gateway shows it to anyone
        role=settings.role,
        pid=os.getpid(),
        host=socket.gethostname(),
        layout=kv.layout,
        fingerprint=started.fingerprint,
        vocab_size=runner.config.vocab_size,
        context_length=min(runner.config.context_length, capacity),
        max_running_requests=settings.max_running_requests,
        max_total_tokens=capacity,
        stats=core.stats(),
        backend=settings.transfer_backend,
        device=str(runner.device),
        encrypts_data=settings.encrypt_data,
        margin=core.planner.book.margin,
        may_lack_draft=settings.speculative_pair_without_draft,
        draft=draft_info(settings),
        graphs=graphs_info(runner, settings),
    )


def draft_info(settings: WorkerSettings) -> DraftInfo | None:
    """What the log and the gateway say of the draft, if there is one."""
    algorithm, folder = settings.speculative_algorithm, settings.speculative_draft_model_path
    return DraftInfo(algorithm, folder or "", settings.speculative_num_steps) if algorithm else None


def graphs_info(runner: Runner, settings: WorkerSettings) -> str:
    """What the gateway says of the CUDA graphs of a worker that decodes on a GPU; "" for other workers."""
    if isinstance(runner, GraphedRunner):
        return f"none: {runner.why_none}" if runner.why_none else "captured"
    decodes_on_gpu = runner.device.type == "cuda" and settings.role is not Role.PREFILL
    return "none: --disable-cuda-graph" if decodes_on_gpu else ""


def why_refused(keys: Keys | None) -> dict[str, str]:
    """The likely cause, by reason, when a gateway refuses a worker's connection."""
    if keys is None:
        return {NO_HANDSHAKE: "the gateway has keys and this worker has none: pass --keys DIR"}
    return {
        UNKNOWN_KEY: f"the gateway's list lacks this worker's key {keys.public}: put that key's file into {ALLOWED}/ of"
        " the gateway's folder of keys",
        NO_HANDSHAKE: f"the gateway has no keys, or not the key in {GATEWAY} of this worker's folder",
    }


def read_trust(settings: WorkerSettings) -> Keys | None:
    """The worker's keys, if it has any. ConfigError if it would bind a reachable address without keys."""
    keys = None if settings.keys is None else read_keys(settings.keys)
    if settings.role is not Role.UNIFIED:  # a unified worker binds nothing
        refuse_exposed(settings.host, "--host", has_keys=keys is not None, trust_network=settings.trust_network)

    if settings.encrypt_data and keys is None:
        raise ConfigError("--encrypt-data needs --keys DIR: `baton keys new` makes one", param="encrypt-data")
    if settings.encrypt_data and settings.transfer_backend in UNGUARDED:
        raise ConfigError(
            f"--encrypt-data: --transfer-backend {settings.transfer_backend} has connections that Baton cannot encrypt;"
            " expected a backend whose connections it can encrypt, such as zmq",
            param="encrypt-data",
        )

    if settings.role is Role.DECODE and keys is not None and not (settings.encrypt_data or is_loopback(settings.host)):
        log.info("KV from other hosts is not encrypted", host=settings.host, option="--encrypt-data")
    return keys


def load_runner(settings: WorkerSettings) -> Runner:
    """Loads the model that the settings name. CheckpointError or ConfigError if it cannot be served."""
    if settings.fake_model:
        algorithm, context_length = settings.speculative_algorithm, settings.context_length or 4096
        num_layers = settings.speculative_num_steps if algorithm == "mtp" else 1
        draft_seed = None if algorithm is None else 1
        return FakeRunner(context_length=context_length, draft_seed=draft_seed, num_draft_layers=num_layers)
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


def build_executor(runner: Runner, settings: WorkerSettings, wake: Callable[[], None]) -> tuple[Executor, KvBook]:
    """The executor, with KV memory sized by the available memory, and its books. ConfigError if there is too little."""
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
    )

    forward, schedule = open_streams(runner.device, wake)
    on_device = runner.device.type == "cuda"
    staging = CudaStream(torch.cuda.Stream(runner.device)) if is_mirrored or (host_bytes and on_device) else None
    kv = (MirroredKv if is_mirrored else PagedKv)(layout, size.num_pages, runner.device)
    num_slots = 1 + host_bytes // layout.all_page_bytes if host_bytes else 0
    book = KvBook(
        size.num_pages,
        layout.page_size,
        max_requests=settings.max_running_requests,
        max_context=longest,
        margin=min(settings.num_reserved_decode_tokens, layout.pool_tokens(size.num_pages) // 16),
        caches=not settings.disable_radix_cache,
        num_slots=num_slots,
        lookahead=layout.lookahead,
    )
    executor = Executor(
        runner,
        kv,
        num_rows=book.rows.num_rows,
        max_pages=book.max_pages,
        forward=forward,
        schedule=schedule,
        staging=staging,
        host=HostCopies(kv, num_slots) if num_slots else None,
        forward_clock=MonotonicClock() if runner.device.type == "cpu" else None,
        launches=launches_for(runner.draft, draft_shape(runner, settings)),
    )
    return executor, book


def speculation_of(runner: Runner, executor: Executor, settings: WorkerSettings) -> Speculation | None:
    """How the planner uses the draft, if there is one. Its costs are measured. ConfigError if it cannot be used so."""
    if runner.draft is None:
        return None
    shape, vocab_size, costs = draft_shape(runner, settings), runner.draft.vocab_size, None
    if shape.topk > vocab_size:
        expected = f"expected at most {vocab_size}, the tokens of its draft's vocabulary"
        raise ConfigError(f"--speculative-eagle-topk: got {shape.topk}, {expected}", param="speculative-eagle-topk")
    num_layers = runner.draft.group.lookahead
    if 1 < num_layers < shape.num_steps:
        expected = f"expected at most {num_layers}, the layers of the draft"
        raise ConfigError(f"--speculative-num-steps: got {shape.num_steps}, {expected}", param="speculative-num-steps")
    if settings.speculative_adaptive and settings.role is not Role.PREFILL:
        costs = measure_step_costs(executor, settings.max_running_requests, shape.num_steps, MonotonicClock())
    return Speculation(shape, begins_with(runner.draft), costs)


def costs_of(runner: Runner, layout: KvLayout, settings: WorkerSettings) -> Costs | None:
    """What the two ways of giving way cost here, with --retract-to auto."""
    if settings.retract_to != "auto":
        return None
    token_bytes, moves = layout.all_page_bytes / layout.page_size, settings.role is Role.DECODE
    return Costs.on(runner.device.type, token_bytes, token_flops(runner.config), moves=moves)


def open_streams(device: torch.device, wake: Callable[[], None]) -> tuple[Stream, Stream]:
    """(forward, schedule) streams of a device."""
    if device.type == "cuda":
        return CudaStream(torch.cuda.Stream(device)), CudaStream(torch.cuda.current_stream(device))
    return HostStream("forward", wake, FORWARD_NICENESS), InlineStream()
