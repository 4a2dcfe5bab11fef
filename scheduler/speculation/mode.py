"""The interface of a draft mode, and what the target does in each: it computes proposals and draws after each.

    propose -> verify | extend

`propose`: the draft proposes W - 1 tokens for each row. `verify`: the target computes the last known token and the
proposals, and draws a token after each. A proposal is kept while it equals the target's draw, so a run of tokens is the
one that the target alone would have drawn. `extend`: the draft reads what was kept, and proposes the first token of the
next launch. The draws need no rejection: each uses the noise of its own position. Li et al. 2024 (EAGLE) describe the
draft.
Shapes: B rows that decode, W tokens of each, N prompts that ship, D first tokens of prompts, T tokens of the target's
forward, L rows of its logits, E hidden.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from model.draft import Draft
from model.inputs import ModelInput
from model.sampler import sample_scored
from scheduler.execution.batches import ForwardBatch, ScheduleBatch
from scheduler.execution.device import Device
from scheduler.execution.future_map import DraftExtras
from scheduler.execution.histories import with_paths
from scheduler.execution.prompt_scores import scored_forward
from scheduler.plan import Plan
from scheduler.speculation.draft_rows import BEYOND, DraftRows
from scheduler.speculation.unwritten import Unwritten

OnLayer = Callable[[int], None] | None


class ModeBatch(Protocol):
    """The inputs of one launch in a mode."""

    @property
    def rows(self) -> DraftRows:
        """What every mode reads."""
        ...

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors."""
        ...


@dataclass(frozen=True)
class Verified:
    """What the target has drawn."""

    tokens_L: Tensor  # first tokens of prompts, then W of each row, BEYOND behind the end of a run
    hidden_TE: Tensor  # of all tokens, as the draft reads them
    shipped: Tensor  # float32 hidden states of N prompts that end, as (N * J * E,) int32; empty: nothing ships
    logprobs_NW: Tensor | None  # of each draw in a row that asks, see score(); None: no row asks
    prompt_words: Tensor | None  # of tokens of prompts, see scored_forward(); None: none are scored


@dataclass(frozen=True)
class Kept(Verified):
    """Which proposals are kept, too."""

    drawn_BW: Tensor
    kept_B: Tensor  # how many
    seq_lens_B: Tensor  # committed after the launch


BatchT = TypeVar("BatchT", bound=ModeBatch)
ProposedT = TypeVar("ProposedT")
VerifiedT = TypeVar("VerifiedT", bound=Verified)


class DraftMode(Protocol[BatchT, ProposedT, VerifiedT]):
    """How launches of one kind use the draft. The segments run on the forward stream, in this order, each once."""

    def num_verified(self, plan: Plan) -> int:
        """Tokens of each row that the target computes."""
        ...

    def build(self, plan: Plan, running: ScheduleBatch, begins: Sequence[int]) -> tuple[ForwardBatch, BatchT]:
        """The inputs of a launch, on the scheduler thread. `begins` are the indices of rows whose last token the draft
        reads first. The lengths of `running` are known; a launch that proposes nothing advances them."""
        ...

    def propose(self, batch: BatchT) -> ProposedT:
        """The last known token of each row, and the draft's proposals behind it."""
        ...

    def verify(self, forward: ForwardBatch, batch: BatchT, proposed: ProposedT, on_layer: OnLayer) -> VerifiedT:
        """What the target draws, and what is kept of the proposals."""
        ...

    def extend(
        self, forward: ForwardBatch, batch: BatchT, verified: VerifiedT, on_layer: OnLayer
    ) -> tuple[Tensor, DraftExtras | None]:
        """Writes the draft's KV of what is kept. Returns the next input tokens, one for each first token of a prompt
        and each row that decodes, and what the next launch's draft reads of them; None: it comes later."""
        ...


AnyMode = DraftMode[Any, Any, Any]  # a batch and what was proposed go back to the mode that made them


@dataclass(frozen=True)
class DraftParts:
    """What all modes of one executor use."""

    device: Device
    draft: Draft
    unwritten: Unwritten


def run_target(parts: DraftParts, forward: ForwardBatch, rows: DraftRows, ids: Tensor, on_layer: OnLayer) -> Verified:
    """Runs the target over the chunks and over the tokens `ids`, (B,) or (B, W), and draws a token after each."""
    inp = forward.input
    tokens = ids.reshape(-1)
    prompts_T = inp.input_ids_T[: inp.input_ids_T.shape[0] - tokens.shape[0]]
    ids_T = torch.cat((prompts_T, tokens)) if prompts_T.numel() else tokens
    inp = replace(inp, input_ids_T=ids_T, step=forward.step)
    logits_LV, features_TF, prompt_words = _computed(parts.device, forward, inp, on_layer)
    history_NT = parts.device.histories.begin(forward.sampling.rules, forward.seeds_3S)
    if history_NT is not None:
        ids_BW = ids if ids.dim() == 2 else ids[:, None]
        history_NT = with_paths(history_NT, forward.sampling, rows.num_draws, ids_BW, inp.tree_bits_D)
    drawn_L, logprobs_NW = sample_scored(logits_LV, forward.sampling, history_NT)

    hidden_TE, shipped = parts.draft.fuse(features_TF), drawn_L.new_empty(0, dtype=torch.int32)
    if rows.shipped_N.numel():
        ends_N = inp.logit_indices_L[rows.shipped_N]
        states = hidden_at_ends(inp, ends_N, hidden_TE, parts.draft.group.lookahead)
        shipped = states.float().view(torch.int32).reshape(-1)
    return Verified(drawn_L, hidden_TE, shipped, logprobs_NW, prompt_words)


def _computed(
    device: Device, forward: ForwardBatch, inp: ModelInput, on_layer: OnLayer
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits and features, and the words of tokens of prompts if some are scored."""
    if forward.scored is None:
        return *device.runner.forward_with_features(inp, device.kv, on_layer), None
    logits_LV, features_TF, words = scored_forward(device.runner, inp, device.kv, on_layer, forward.scored)
    assert features_TF is not None, "there is a draft"
    return logits_LV, features_TF, words


def keep_chain(rows: DraftRows, drawn: Verified, proposals_BK: Tensor) -> Kept:
    """What is kept of proposals one behind the other: those that equal the draws, up to the first that does not."""
    firsts_D, drawn_BW = drawn.tokens_L[: rows.num_draws], drawn.tokens_L[rows.num_draws :].view(-1, rows.width)
    kept_B = (drawn_BW[:, :-1] == proposals_BK).cumprod(1).sum(1)
    return keep(rows, drawn, firsts_D, drawn_BW, kept_B)


def keep(rows: DraftRows, drawn: Verified, firsts_D: Tensor, drawn_BW: Tensor, kept_B: Tensor) -> Kept:
    """The runs that begin with the kept proposals. `drawn_BW` are the draws after the last known token and each of
    them."""
    is_beyond_BW = rows.places_W > kept_B[:, None]
    tokens_D = drawn_BW.masked_fill(is_beyond_BW, BEYOND).reshape(-1)
    return Kept(
        tokens_L=torch.cat((firsts_D, tokens_D)) if rows.num_draws else tokens_D,
        hidden_TE=drawn.hidden_TE,
        shipped=drawn.shipped,
        logprobs_NW=drawn.logprobs_NW,
        prompt_words=drawn.prompt_words,
        drawn_BW=drawn_BW,
        kept_B=kept_B,
        seq_lens_B=torch.minimum(rows.seq_lens_B + kept_B + 1, rows.limits_B),
    )


def hidden_at_ends(inp: ModelInput, ends_D: Tensor, hidden_TE: Tensor, num_layers: int) -> Tensor:
    """The features (D, J, E) of the last J positions up to `ends_D` in T; zeros before a context's beginning."""
    at_DJ, is_there_DJ = last_positions(inp, ends_D, num_layers)
    return hidden_TE[at_DJ].where(is_there_DJ[:, :, None], 0)


def last_positions(inp: ModelInput, ends_D: Tensor, num_layers: int) -> tuple[Tensor, Tensor]:
    """The indices (D, J) in T of the last J positions up to `ends_D`, and whether the context has them."""
    back_J = torch.arange(1 - num_layers, 1, device=ends_D.device)
    return (ends_D[:, None] + back_J).clamp(min=0), inp.positions_T[ends_D][:, None] + back_J >= 0


def hidden_bytes(words: Sequence[int], num_states: int) -> tuple[bytes, ...]:
    """The hidden states in `Verified.shipped`."""
    if not num_states:
        return ()
    raw = array("i", words).tobytes()
    size = len(raw) // num_states
    return tuple(raw[start : start + size] for start in range(0, len(raw), size))
