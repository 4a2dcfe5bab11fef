"""Allocates a worker's KV: reads what memory there is, lets kv_sizing.py decide, and makes the storage.

What it does not know: which pages belong to whom.
"""

from model.host_memory import available_bytes
from model.kv_sizing import KvBudget, KvSize, activation_bytes, choose_kv_size
from model.paged_kv import PagedKv
from model.runner import Runner


def allocate_kv(
    runner: Runner,
    page_size: int,
    *,
    workers_on_host: int,
    max_running_requests: int,
    tokens_per_forward: int,
    max_total_tokens: int | None = None,
) -> tuple[PagedKv, KvSize]:
    """The KV storage of one worker and why it has this size.

    `workers_on_host` share the memory (on a GPU: that GPU); `tokens_per_forward` is the largest batch, chunks and
    decodes together. Raises ConfigError when not even one context fits.
    """
    config = runner.config
    layout = runner.kv_layout(page_size)
    activations = activation_bytes(
        config, runner.dtype, tokens_per_forward=tokens_per_forward, logit_rows=max_running_requests
    )
    budget = KvBudget(available_bytes(runner.device), workers_on_host, runner.mapped_weight_bytes, activations)
    size = choose_kv_size(
        layout,
        budget,
        context_length=config.context_length,
        max_running_requests=max_running_requests,
        max_total_tokens=max_total_tokens,
    )
    return PagedKv(layout, size.num_pages, runner.device), size
