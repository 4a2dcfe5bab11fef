"""How much memory a worker may give to KV: what is available, less what forwards, graphs and a draft need."""

import torch

from model.graphs import GraphedRunner, bucket_sizes
from model.host_memory import available_bytes, device_share
from model.kv_sizing import KvBudget, activation_bytes, draft_bytes, graph_bytes, group_bytes, host_copy_bytes
from model.runner import Runner
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Role
from runtime.settings import WorkerSettings
from scheduler.draft_shape import NO_DRAFT, DraftShape


def memory_budgets(runner: Runner, settings: WorkerSettings, longest: int, host_bytes: int = 0) -> list[KvBudget]:
    """The memories that each page takes bytes of: the device's, and the host's if KV has a twin there.

    Only a device's own workers share its memory. `longest` is the longest context of a request, in tokens. `host_bytes`
    of host memory are taken already.
    """
    device, config = runner.device, runner.config
    workers, on_host = sharers(device, settings), settings.workers_on_host
    width, tokens = draft_shape(runner, settings).num_computed, _prompt_tokens(settings, longest)
    rows = width * settings.max_running_requests
    activations = activation_bytes(config, runner.dtype, tokens_per_forward=tokens, logit_rows=rows)
    activations += bytes_for_group(runner, settings, longest)
    if runner.draft is not None:
        activations += draft_bytes(runner.draft, tokens_per_forward=tokens)
    if isinstance(runner, GraphedRunner):
        ahead = runner.draft.group.lookahead - 1 if runner.draft else 0  # see GraphedRunner.capture
        lanes = (width + ahead) * bucket_sizes(settings.max_running_requests)[-1]
        activations += graph_bytes(config, runner.dtype, lanes=lanes)
    if device.type == "cpu":
        weights = runner.mapped_weight_bytes + (workers - 1) * runner.private_weight_bytes
        return [KvBudget(available_bytes(device), workers, weights, activations + host_bytes)]

    place = str(device) if workers == 1 else f"{device}, of which this worker has 1/{workers}"
    budget = KvBudget(device_share(device, workers), 1, 0, activations, place)
    if not has_twin(device, settings):
        return [budget]
    return [budget, KvBudget(available_bytes(torch.device("cpu")), on_host, 0, host_bytes)]


def bytes_for_group(runner: Runner, settings: WorkerSettings, longest: int) -> int:
    """Bytes that the ranks of a group give one another: in the largest forward, and in graphs of decodes, which keep
    theirs. 0: there are no other ranks."""
    if runner.collectives is None:
        return 0
    width, most = draft_shape(runner, settings).num_computed, settings.max_running_requests
    tokens = max(_prompt_tokens(settings, longest), width * most)
    if isinstance(runner, GraphedRunner):
        tokens += width * bucket_sizes(most)[-1]
    return group_bytes(runner.config, runner.dtype, num_ranks=runner.collectives.size, tokens=tokens)


def _prompt_tokens(settings: WorkerSettings, longest: int) -> int:
    """The most tokens of prompts that a launch computes."""
    chunk = settings.chunked_prefill_size
    return max(settings.max_prefill_tokens or chunk, 0 if chunk else longest)


def bytes_for_spills(layout: KvLayout, settings: WorkerSettings, longest: int) -> int:
    """Bytes of host memory for KV of preempted choices. 0: they begin again, or this worker does not decode."""
    if settings.retract_to == "prefill" or settings.role is Role.PREFILL:
        return 0
    most_tokens = longest * settings.max_running_requests
    budget = KvBudget(available_bytes(torch.device("cpu")), settings.workers_on_host, 0, 0)
    return host_copy_bytes(layout, settings.retract_host_gib, most_tokens, budget)


def draft_shape(runner: Runner, settings: WorkerSettings) -> DraftShape:
    """How much the draft proposes for a row, by the settings. NO_DRAFT without a draft."""
    if runner.draft is None:
        return NO_DRAFT
    topk = settings.speculative_eagle_topk
    num_nodes = (settings.speculative_num_draft_tokens or 0) if topk > 1 else 0
    return DraftShape(settings.speculative_num_steps, topk, num_nodes)


def sharers(device: torch.device, settings: WorkerSettings) -> int:
    """How many workers share the memory of the device, this one included."""
    return settings.workers_on_host if device.type == "cpu" else settings.workers_on_gpu


def has_twin(device: torch.device, settings: WorkerSettings) -> bool:
    """Whether KV has a twin in host memory: on a device, unless KV stays there or goes to another device directly."""
    leaves_by_host = settings.role is not Role.UNIFIED and settings.transfer_backend != "cuda_ipc"
    return device.type != "cpu" and leaves_by_host
