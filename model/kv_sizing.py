"""How many pages of KV a worker may have: a pure decision over numbers that host_memory.py reads.

Available memory, less what activations and unread weights will take, is divided among the workers that share it. A
worker gets no more pages than it can use.
"""

from dataclasses import dataclass
from typing import Final

from model.draft import Draft
from protocol.errors import ConfigError, MemoryShort
from protocol.kv_layout import ITEM_BYTES, KvLayout
from runtime.model_config import ModelConfig

PACKED_SHARE: Final = 0.1  # of available memory, for packed weights of all workers together
WIDENED_SHARE: Final = 0.4  # the same where a CPU would compute bfloat16 without instructions for it
SAFETY_SHARE: Final = 0.1  # of available memory, left for uses that are not counted
_SCORE_BYTES: Final = 40  # of an expert's score, what is made of it, and its place among the others
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class KvBudget:
    """One memory and its uses other than KV."""

    available_bytes: int  # free now
    workers: int  # that share it, this one included
    weight_bytes: int  # not read yet: the mapped file, once for all workers, and other workers' copies
    activation_bytes: int  # of one worker's largest forward
    place: str = "this host"  # the memory's owner, for errors

    @property
    def usable_bytes(self) -> int:
        """What one worker may spend on KV."""
        usable = int(self.available_bytes * (1 - SAFETY_SHARE)) - self.weight_bytes
        return usable // self.workers - self.activation_bytes


@dataclass(frozen=True)
class KvSize:
    """The decision. `num_pages` includes the padding page 0; `limited_by` is memory, max_total_tokens or demand."""

    num_pages: int
    limited_by: str


def choose_kv_size(
    layout: KvLayout,
    *budgets: KvBudget,
    context_length: int,
    max_running_requests: int,
    max_total_tokens: int | None = None,
    demand_tokens: int | None = None,
) -> KvSize:
    """Pages for one worker: the least of memory, `max_total_tokens`, and all running requests at full length.

    A page takes bytes from each of the `budgets`: the device's, and the host's if KV has a twin there.

    Without `max_total_tokens`, a lower `demand_tokens` replaces those requests, but one full context always fits. Both
    are rounded up to whole pages. MemoryShort if memory is too small for one full context.
    """
    needed = layout.num_pages(context_length)
    if max_total_tokens is not None and layout.num_pages(max_total_tokens) < needed:
        raise ConfigError(
            f"max_total_tokens: got {max_total_tokens}, expected at least the context length of"
            f" {context_length}; raise it or lower the context length",
            param="max_total_tokens",
        )

    demand = needed * max_running_requests
    if demand_tokens is not None and max_total_tokens is None:
        demand = max(needed, min(demand, layout.num_pages(demand_tokens)))
    page_bytes = layout.all_page_bytes
    budget = min(budgets, key=lambda candidate: candidate.usable_bytes)
    usable = budget.usable_bytes
    limits = [(usable // page_bytes - 1, "memory"), (demand, "demand")]
    if max_total_tokens is not None:
        limits.append((layout.num_pages(max_total_tokens), "max_total_tokens"))

    pages, limited_by = min(limits, key=lambda limit: limit[0])
    if pages < needed:
        raise MemoryShort(
            f"KV memory: one context of {context_length} tokens takes {(needed + 1) * page_bytes / _MIB:.0f} MiB, but"
            f" {max(usable, 0) / _MIB:.0f} MiB are left for a worker ({budget.available_bytes / _MIB:.0f} MiB available"
            f" to {budget.workers} on {budget.place}); lower the context length or free memory"
        )
    return KvSize(pages + 1, limited_by)


def activation_bytes(config: ModelConfig, dtype: str, *, tokens_per_forward: int, logit_rows: int) -> int:
    """An upper estimate of the bytes that one forward and its sampling hold, besides weights and KV."""
    item_bytes = ITEM_BYTES[dtype]
    # One context of K and V is gathered at a time, with a chunk's mask over it.
    gathered = 2 * config.context_length * config.num_kv_heads * config.head_dim * item_bytes
    mask = min(tokens_per_forward, 512) * config.context_length * 4
    # Copies of the logits, and keys and digits of top-p, in 4 bytes; weights and places in 8.
    per_row = config.vocab_size * (7 * 4 + 3 * 8)
    return tokens_per_forward * _token_bytes(config, item_bytes) + gathered + mask + logit_rows * per_row


def draft_bytes(draft: Draft, *, tokens_per_forward: int) -> int:
    """An upper estimate of the bytes that a draft holds beside what the target's forward has left.

    They are features, hidden states, embeddings and the norms of both, at most in float32. The draft's layer needs no
    more than a layer of the target.
    """
    num_features = len(draft.feature_layers) or 1
    return tokens_per_forward * draft.hidden_size * (num_features + 4) * 4


def graph_bytes(config: ModelConfig, dtype: str, *, lanes: int) -> int:
    """An upper estimate of the bytes that graphs of decodes keep, with `lanes` in the largest.

    They share the memory of one forward and one buffer of logits. A forward has logits in the model's dtype and in
    float32.
    """
    item_bytes = ITEM_BYTES[dtype]
    return lanes * (_token_bytes(config, item_bytes) + config.vocab_size * (item_bytes + 4 + 4))


def group_bytes(config: ModelConfig, dtype: str, *, num_ranks: int, tokens: int) -> int:
    """An upper estimate of the bytes of the rows that the ranks of a group give one another in a layer, if the rank
    with most of them computes `tokens`.

    Four tensors of as many rows for each rank live together: the gathered rows, this rank's parts of their MLP, the
    parts with padding, and what the exchange brings. A mixture on a GPU has the result of each expert of a row as well
    (model/experts_triton.py).
    """
    num_tensors = 4 + max(layer.feed.num_results for layer in config.layers)
    return num_tensors * num_ranks * tokens * config.hidden_size * ITEM_BYTES[dtype]


def _token_bytes(config: ModelConfig, item_bytes: int) -> int:
    """Bytes of one token in a forward. Norms and rope hold float32 copies; gate, up and their product live together.
    A router has a few numbers for each expert."""
    heads_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    attention = (4 * config.hidden_size + 3 * heads_width) * (item_bytes + 4)
    feeds = {layer.feed for layer in config.layers}
    return attention + max(3 * feed.active_width * item_bytes + feed.num_scores * _SCORE_BYTES for feed in feeds)


def window_waste(config: ModelConfig, tokens: int) -> float:
    """The share of the KV of a context of `tokens` that lies before the windows of its layers, and is kept: pages have
    one number for all layers."""
    kept = [min(layer.mixer.window or tokens, tokens) for layer in config.layers]
    return 1 - sum(kept) / (tokens * len(kept))


def host_copy_bytes(layout: KvLayout, gib: int, most_tokens: int, budget: KvBudget) -> int:
    """Bytes of host memory for KV of preempted choices: `gib` GiB at most, and no more than `most_tokens` tokens take.

    MemoryShort if the host does not have them, ConfigError if they hold no page.
    """
    wanted = min(gib << 30, layout.num_pages(most_tokens) * layout.all_page_bytes)
    least = layout.all_page_bytes
    if not least <= wanted <= budget.usable_bytes:
        kind = ConfigError if wanted < least else MemoryShort
        raise kind(
            f"retract_host_gib: got {gib}, of which {wanted / _MIB:.0f} MiB are needed, expected at least"
            f" {least / _MIB:.1f} MiB (a page of KV) and at most {max(budget.usable_bytes, 0) / _MIB:.0f} MiB, which"
            f" {budget.place} has left for this worker",
            param="retract_host_gib",
        )
    return wanted


def token_flops(config: ModelConfig) -> int:
    """Operations of one prompt token in a forward: two for each weight that it is multiplied with."""
    attention = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    projections = sum(attention + 3 * layer.feed.active_width + layer.feed.num_scores for layer in config.layers)
    return 2 * config.hidden_size * projections


def worth_packing(weight_bytes: int, available_bytes: int, workers_on_host: int, share: float = PACKED_SHARE) -> bool:
    """Whether each worker may hold its own packed weights. That is faster, but they are not shared through the file."""
    return weight_bytes * workers_on_host <= share * available_bytes
