"""What a worker tells the gateway of itself when it joins."""

import os
import socket
from dataclasses import replace

from model.graphs import GraphedRunner
from model.runner import Runner
from protocol.messages_gateway import RankEndpoint, Register, Role, WorkerAddress
from protocol.worker_facts import DraftInfo
from runtime.curve import without_secret
from runtime.settings import WorkerSettings
from worker.parts import Core
from worker.started import Started


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
        margin=core.planner.kv_manager.margin,
        may_lack_draft=settings.speculative_pair_without_draft,
        draft=draft_info(settings),
        graphs=graphs_info(runner, settings),
        place=settings.place if settings.group_size > 1 else None,
        max_queued_requests=settings.max_queued_requests,
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
