"""The computations of a launch with a draft, on the forward stream:

    propose -> verify | extend

`propose`: the draft proposes W - 1 tokens for each row. `verify`: the target computes the last known token and the
proposals, and draws a token after each. A proposal is kept while it equals the target's draw, so a run of tokens is the
one that the target alone would have drawn. `extend`: the draft reads what was kept, and proposes the next token.
Where nothing is proposed (W = 1), `extend` only writes the draft's KV, that of decodes later (see unwritten.py). The
next launch that proposes begins with the target's hidden state of the last token, as after a prompt.
The draws need no rejection: each uses the noise of its own position. Li et al. 2024 (EAGLE) describe the draft.
Shapes: B rows that decode, W tokens of each, N rows that begin, D first tokens of prompts, T tokens of the target's
forward, L rows of its logits, E hidden.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.draft import Draft, first_layer
from model.paged_kv import PagedKv
from model.runner import Runner
from model.sampler import NOT_A_TOKEN, sample
from scheduler.execution.batches import ForwardBatch
from scheduler.execution.future_map import DraftExtras, FutureMap
from scheduler.speculation.draft_batch import BEYOND, DraftBatch, Seeds
from scheduler.speculation.draft_layers import Past, begin_layers, extend_layers, hidden_at_ends
from scheduler.speculation.draft_tree import Tree, best_tokens, empty_tree, walk
from scheduler.speculation.tree_segments import along, compact, propose_tree, with_tree
from scheduler.speculation.unwritten import Unwritten

OnLayer = Callable[[int], None] | None


@dataclass(frozen=True)
class Proposed:
    """The last known token of each row, and the proposals behind it. Negative: there is none."""

    ids_B: Tensor
    proposals_BK: Tensor
    tree: Tree | None = None  # the proposals are its nodes
    past: Past | None = None  # of a draft of several layers


@dataclass(frozen=True)
class Verified:
    """What the target has drawn."""

    tokens_L: Tensor  # first tokens of prompts, then W of each row, BEYOND behind the end of a run
    hidden_TE: Tensor  # of all tokens, as the draft reads them
    shipped: Tensor | None  # float32 hidden states of N prompts that end, as (N * J * E,) int32
    past: Past | None  # see Proposed
    kept: "Kept | None" = None  # None: nothing was proposed
    path_BW: Tensor | None = None  # the nodes of a tree that are kept


@dataclass(frozen=True)
class Kept:
    """Which proposals are kept."""

    drawn_BW: Tensor
    kept_B: Tensor  # how many
    seq_lens_B: Tensor  # committed after the launch


def propose(draft: Draft, kv: PagedKv, future_map: FutureMap, own: DraftBatch, unwritten: Unwritten) -> Proposed:
    """The draft's proposals for each row that decodes. Before it proposes, nothing may be unwritten."""
    ids_B = future_map.resolve_future(own.ids_B, own.owners_B)
    begin, chain, tree = own.begin, own.chain, own.tree
    nothing = Proposed(ids_B, ids_B.new_full((ids_B.shape[0], own.width - 1), NOT_A_TOKEN))
    if tree is not None:
        nodes = empty_tree(ids_B, tree.num_nodes)
        nothing = Proposed(ids_B, nodes.tokens_BW[:, 1:], nodes)
    if (seeds := own.seeds) is not None:
        future_map.stash_extras(seeds.rows_N, _seeding(seeds, draft, own.topk), seeds.owners_N)
    if own.window is not None:
        return _propose_by_layers(draft, kv, future_map, own, ids_B)
    if chain is None:
        if begin is not None:
            begun = future_map.resolve_extras(own.rows_B[begin.rows_N], own.owners_B[begin.rows_N])
            if begun.hidden_NE is not None:
                unwritten.add(replace(begin.input, input_ids_T=ids_B[begin.rows_N]), begun.hidden_NE)
        return nothing

    extras = future_map.resolve_extras(own.rows_B, own.owners_B)
    hidden_BE, tokens_BK, log_p_BK = extras.hidden_NE, extras.topk_index_NK, extras.topk_p_NK
    if hidden_BE is None or tokens_BK is None:  # no launch has left anything for a draft yet
        return nothing

    if begin is not None:
        inp = replace(begin.input, input_ids_T=ids_B[begin.rows_N])
        logits_NV, hidden_NE = first_layer(draft, inp, hidden_BE[begin.rows_N], kv)
        tokens_NK, log_p_NK = _first_proposals(logits_NV, own.topk)
        tokens_BK = tokens_BK.index_copy(0, begin.rows_N, tokens_NK)
        if log_p_BK is not None and log_p_NK is not None:
            log_p_BK = log_p_BK.index_copy(0, begin.rows_N, log_p_NK)
        hidden_BE = hidden_BE.index_copy(0, begin.rows_N, hidden_NE)

    if tree is not None and log_p_BK is not None:
        nodes = propose_tree(draft, kv, tree, ids_B, tokens_BK, log_p_BK, hidden_BE)
        return Proposed(ids_B, nodes.tokens_BW[:, 1:], nodes)
    proposals = [tokens_BK[:, 0]]
    for step in chain.steps:
        inp = replace(step, input_ids_T=proposals[-1].clamp(min=0))
        logits_BV, hidden_BE = first_layer(draft, inp, hidden_BE, kv)
        proposals.append(logits_BV.argmax(-1))
    return Proposed(ids_B, torch.stack(proposals, 1))


def _seeding(seeds: Seeds, draft: Draft, topk: int) -> DraftExtras:
    hidden_NE, num_layers = seeds.hidden_NE.to(draft.hidden_dtype), draft.group.lookahead
    if num_layers == 1:
        return _nothing_proposed(hidden_NE, topk)
    none_NJ = torch.full_like(seeds.rows_N, NOT_A_TOKEN)[:, None].expand(-1, num_layers)
    return DraftExtras(none_NJ, None, hidden_NE.unflatten(1, (num_layers, -1)), seeds.before_NK)


def _propose_by_layers(draft: Draft, kv: PagedKv, future_map: FutureMap, own: DraftBatch, ids_B: Tensor) -> Proposed:
    extras = future_map.resolve_extras(own.rows_B, own.owners_B)
    past, begin = Past.stashed(extras, ids_B, draft), own.begin
    proposals_BJ = extras.topk_index_NK
    if proposals_BJ is None or extras.hidden_NE is None:
        proposals_BJ = torch.full_like(past.tokens_BJ, NOT_A_TOKEN)
    if begin is not None:
        found_NJ = begin_layers(draft, kv, begin.input, past.take(begin.rows_N), proposes=own.chain is not None)
        proposals_BJ = proposals_BJ.index_copy(0, begin.rows_N, found_NJ)
    return Proposed(ids_B, proposals_BJ[:, : own.width - 1], past=past)


def verify(
    runner: Runner, kv: PagedKv, batch: ForwardBatch, own: DraftBatch, proposed: Proposed, on_layer: OnLayer
) -> Verified:
    """What the target draws after each of the tokens, and how many proposals are kept."""
    draft = runner.draft
    assert draft is not None, "a speculative launch needs a draft"
    if own.tree is not None and proposed.tree is not None:
        batch = with_tree(batch, own.tree, proposed.tree)
    inp, rows, width = batch.input, own.rows_B.shape[0], 1 + proposed.proposals_BK.shape[1]
    prompts_T, tokens = inp.input_ids_T[: inp.input_ids_T.shape[0] - rows * width], proposed.ids_B
    if width > 1:
        tokens = torch.cat((tokens[:, None], proposed.proposals_BK.clamp(min=0)), 1).reshape(-1)
    inp = replace(inp, input_ids_T=torch.cat((prompts_T, tokens)) if prompts_T.numel() else tokens)
    logits_LV, features_TF = runner.forward_with_features(inp, kv, on_layer)
    drawn_L = sample(logits_LV, batch.sampling)

    hidden_TE, shipped = draft.fuse(features_TF), None
    if own.shipped_N is not None:
        ends_N = inp.logit_indices_L[own.shipped_N]
        states = hidden_at_ends(inp, ends_N, hidden_TE, draft.group.lookahead)
        shipped = states.float().view(torch.int32).reshape(-1)
    if (chain := own.chain) is None:
        return Verified(drawn_L, hidden_TE, shipped, proposed.past)

    firsts_D, drawn_BW, path_BW = drawn_L[: own.num_draws], drawn_L[own.num_draws :].view(rows, width), None
    if own.tree is None or proposed.tree is None:
        kept_B = (drawn_BW[:, :-1] == proposed.proposals_BK).cumprod(1).sum(1)
    else:
        path_BW, kept_B = walk(proposed.tree, drawn_BW, chain.limits_B - chain.seq_lens_B, own.tree.num_steps)
        drawn_BW, hidden_TE = drawn_BW.gather(1, path_BW), along(path_BW, hidden_TE, width)
    is_beyond = torch.arange(own.width, device=kept_B.device) > kept_B[:, None]
    return Verified(
        tokens_L=torch.cat((firsts_D, drawn_BW.masked_fill(is_beyond, BEYOND).reshape(-1))),
        hidden_TE=hidden_TE,
        shipped=shipped,
        past=proposed.past,
        kept=Kept(drawn_BW, kept_B, torch.minimum(chain.seq_lens_B + kept_B + 1, chain.limits_B)),
        path_BW=path_BW,
    )


def hidden_bytes(words: Sequence[int], num_states: int) -> tuple[bytes, ...]:
    """The hidden states in `Verified.shipped`."""
    if not num_states:
        return ()
    raw = array("i", words).tobytes()
    size = len(raw) // num_states
    return tuple(raw[start : start + size] for start in range(0, len(raw), size))


def extend(
    draft: Draft,
    kv: PagedKv,
    batch: ForwardBatch,
    own: DraftBatch,
    verified: Verified,
    unwritten: Unwritten,
    on_layer: OnLayer,
) -> tuple[Tensor, DraftExtras]:
    """Writes the draft's KV of what the target has computed. Returns the next input token of each row that draws, and
    what the next launch reads of it: the first proposal and the draft's hidden state. After a prompt, and where nothing
    was proposed, there is no proposal, and the state is the target's: the draft reads the token when a launch proposes
    again, each choice of a prompt its own."""
    if own.window is not None:
        return _extend_by_layers(draft, kv, batch, own, verified, on_layer)
    if (chain := own.chain) is None or (kept := verified.kept) is None:
        tokens_L, hidden_TE = verified.tokens_L.clamp(min=0), verified.hidden_TE
        if batch.input.extend_lens:
            inp = replace(batch.input, input_ids_T=torch.cat((own.after_T, tokens_L[own.num_draws :])))
            draft.run_layer(0, inp, hidden_TE, kv, on_layer, attends=False)
            hidden_TE = hidden_TE[batch.input.logit_indices_L]
        else:
            unwritten.add(replace(batch.input, input_ids_T=tokens_L), hidden_TE)
        if unwritten.is_full:
            unwritten.write(draft, kv)
        return tokens_L, _nothing_proposed(hidden_TE, own.topk)

    inp = batch.input
    if own.tree is not None and verified.path_BW is not None:
        inp = own.tree.path
        compact(kv, own.tree, verified.path_BW, kept.kept_B)
    firsts_D, drawn_BW = verified.tokens_L[: own.num_draws], kept.drawn_BW
    num_prompts = own.after_T.shape[0]
    last_B = torch.arange(drawn_BW.shape[0], device=drawn_BW.device) * own.width + kept.kept_B
    inp = replace(
        inp,
        input_ids_T=torch.cat((own.after_T, drawn_BW.reshape(-1).clamp(min=0))),
        logit_indices_L=num_prompts + last_B,
    )
    logits_BV, hidden_BE = first_layer(draft, inp, verified.hidden_TE, kv, on_layer)

    tokens_BK, log_p_BK = _first_proposals(logits_BV, own.topk)
    if chain.drafts_B is not None:
        tokens_BK = tokens_BK.masked_fill(~chain.drafts_B[:, None], NOT_A_TOKEN)
    firsts = _nothing_proposed(verified.hidden_TE[batch.input.logit_indices_L[: own.num_draws]], own.topk)
    tokens_L = torch.cat((firsts_D, drawn_BW.gather(1, kept.kept_B[:, None])[:, 0])).clamp(min=0)
    return tokens_L, firsts.followed_by(DraftExtras(tokens_BK, log_p_BK, hidden_BE))


def _first_proposals(logits_NV: Tensor, topk: int) -> tuple[Tensor, Tensor | None]:
    """The tokens (N, K) that the draft proposes after the last known ones, and in trees their log-probabilities."""
    if topk > 1:
        return best_tokens(logits_NV, topk)
    return logits_NV.argmax(-1, keepdim=True), None


def _nothing_proposed(hidden_NE: Tensor, topk: int) -> DraftExtras:
    """For rows whose last token the draft has not read."""
    none_NK = torch.full((hidden_NE.shape[0], topk), NOT_A_TOKEN, device=hidden_NE.device)
    return DraftExtras(none_NK, none_NK.float() if topk > 1 else None, hidden_NE)


def _extend_by_layers(
    draft: Draft, kv: PagedKv, batch: ForwardBatch, own: DraftBatch, verified: Verified, on_layer: OnLayer
) -> tuple[Tensor, DraftExtras]:
    firsts_D, kept, chain = verified.tokens_L[: own.num_draws], verified.kept, own.chain
    assert own.window is not None and verified.past is not None
    if kept is None or chain is None:
        drawn_BW = verified.tokens_L[own.num_draws :][:, None]
        kept_B = torch.zeros_like(drawn_BW[:, 0])
    else:
        drawn_BW, kept_B = kept.drawn_BW, kept.kept_B
    of_rows = (own.window, verified.past, drawn_BW, kept_B, verified.hidden_TE)
    proposals_BJ, past = extend_layers(draft, kv, *of_rows, on_layer, proposes=chain is not None)
    if chain is not None and chain.drafts_B is not None:
        proposals_BJ = proposals_BJ.masked_fill(~chain.drafts_B[:, None], NOT_A_TOKEN)

    ends_D, num_layers = batch.input.logit_indices_L[: own.num_draws], proposals_BJ.shape[1]
    prompts = Past.of_prompts(batch.input, ends_D, verified.hidden_TE, firsts_D, num_layers)
    past = prompts.concat(past)
    none_DJ = torch.full_like(prompts.tokens_BJ, NOT_A_TOKEN)
    return past.tokens_BJ[:, -1].clamp(min=0), past.extras(torch.cat((none_DJ, proposals_BJ)))
