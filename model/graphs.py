"""Decodes as CUDA graphs: a forward of a few hundred kernels becomes one call, for batches of a few sizes.

A batch is copied into fixed buffers and padded to the next captured size. Padding lanes read and write page 0 only. The
graphs of all sizes write their results into the same buffers. Chunks of prompts and larger batches run without graphs.
With a draft, the graphs of the target give features, too, and each of the draft's layers has graphs of its own.
A size whose longest contexts take attention several passes over a layer has two graphs. One takes all lengths, the
other one pass, and the contexts that fit into that.
Graphs that read tree masks serve all decodes. Others serve decodes without one.
In a group all ranks capture the same sizes. In a step of graphs all enter the collectives of one size: ranks that only
decode replay the graph of it, and the others pad to it.
Shapes: B lanes, P pages of the longest context, n <= B requests, T = n tokens, L rows of logits, V vocabulary,
E hidden.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, cast

import torch
from torch import Tensor

from model.collectives import Collectives, agree, outside_steps
from model.cuda_capture import Capture, CudaCapture, Run
from model.draft import chain_by_steps, likeliest_by_logits
from model.experts import is_grouped
from model.inputs import ModelInput, padding
from model.loaded_draft import LoadedDraft
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.errors import ConfigError, GroupBroken
from runtime.log import get_log
from runtime.model_parts import ExpertsConfig

T = TypeVar("T")
log = get_log("graphs")

TOLERANCE: Final = 0.01  # of the largest logit: how far a graph may be from the forward that it captured
CHECK_BYTES: Final = 32 << 20  # of a result that are compared at once
WHY_CHARS: Final = 200  # of the reason why there are no graphs


class NoGraph(RuntimeError):
    """No rank of the group has this graph, because one of them could not capture it."""


def bucket_sizes(max_batch: int) -> tuple[int, ...]:
    """Batch sizes to capture: 1, 2, 4, 8, then steps of eight, up to the first that is at least `max_batch`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < max_batch:
        sizes.append(sizes[-1] + 8)
    return tuple(sizes[: bisect_left(sizes, max_batch) + 1])


class Lanes:
    """The inputs of `num_lanes` decodes, always in the same memory. A lane without a request is one token of page 0.

    With `trees` they have a tree mask.
    """

    def __init__(
        self, num_lanes: int, num_pages: int, page_size: int, device: torch.device, *, trees: bool = False
    ) -> None:
        self.input = padding(num_lanes, num_pages, page_size, device, trees=trees)

    def first(self, count: int) -> ModelInput:
        """The first `count` lanes, in the same memory."""
        return replace(self.input.mapped(lambda lanes: lanes[:count]), num_decodes=count)

    def fill(self, decodes: ModelInput, count: int) -> None:
        """Copies `decodes` into the first lanes and pads up to `count`. Lanes without a tree mask take none.

        The page table keeps old values behind a context, where it is not read.
        """
        own, n, width = self.input, decodes.num_decodes, decodes.page_table_BP.shape[1]
        own.page_table_BP[:n, :width].copy_(decodes.page_table_BP)
        own.page_table_BP[n:count, :1].zero_()
        columns = [
            (own.input_ids_T, decodes.input_ids_T, 0),
            (own.positions_T, decodes.positions_T, 0),
            (own.slots_T, decodes.slots_T, 0),
            (own.seq_lens_B, decodes.seq_lens_B, 1),
        ]
        if own.tree_mask is not None:
            starts_B, bits_B = own.tree_mask
            whole_nn = decodes.seq_lens_B, torch.zeros_like(decodes.seq_lens_B)  # every slot of a context
            starts_n, bits_n = decodes.tree_mask or whole_nn
            columns += [(starts_B, starts_n, 1), (bits_B, bits_n, 0)]
        for lane_B, value_n, unused in columns:
            lane_B[:n].copy_(value_n)
            lane_B[n:count].fill_(unused)


def is_close(found_BN: Tensor, wanted_BN: Tensor) -> bool:
    """Whether a graph's result is near that of the forward. It takes memory for CHECK_BYTES of rows at a time, because
    the logits of the largest graph may have gigabytes."""
    num_rows = max(1, CHECK_BYTES // max(1, wanted_BN[:1].nbytes))
    found_blocks, wanted_blocks = found_BN.split(num_rows), wanted_BN.split(num_rows)
    largest = max(1.0, *(float(wanted.abs().max()) for wanted in wanted_blocks))
    return all(
        torch.allclose(result, wanted, rtol=0.0, atol=TOLERANCE * largest)
        for result, wanted in zip(found_blocks, wanted_blocks, strict=True)
    )


class Graphs:
    """Graphs of one forward of decodes, for batches of a few sizes.

    `compute(inp, kv, *states)` is the forward: it also reads `states` and returns tensors, each with a row per lane.
    `longest_at_once`: see AttentionBackend. `collectives`: it computes with the other ranks of its group.
    """

    def __init__(
        self,
        compute: Callable[..., tuple[Tensor, ...]],
        make_graph: Capture,
        longest_at_once: Callable[[int], int | None],
        collectives: Collectives | None = None,
    ) -> None:
        self._compute, self._make_graph, self._collectives = compute, make_graph, collectives
        self._longest_at_once = longest_at_once
        self.num_replays = 0
        self.forget()

    @property
    def largest(self) -> int:
        """Decodes of the largest graph; 0 if there is none."""
        return self._sizes[-1] if self._sizes else 0

    def forget(self) -> None:
        """Forgets what was captured: `replay` returns None."""
        self._kv: PagedKv | None = None
        self._lanes: Lanes | None = None
        self._states: tuple[Tensor, ...] = ()
        self._results: tuple[Tensor, ...] = ()
        self._graphs: dict[int, list[tuple[int, Run]]] = {}  # by size: the longest context and the graph, ascending
        self._sizes: tuple[int, ...] = ()

    def capture(self, kv: PagedKv, lanes: Lanes, sizes: tuple[int, ...], *states: Tensor) -> None:
        """Captures the forward for each of `sizes`, ascending. `states` have a row per lane, like `lanes`.

        The largest size comes first, so that the others fit into its memory. RuntimeError if a graph does not give the
        forward's result; errors of a driver, an allocator or a kernel pass through. In a group every rank raises if one
        of them does.
        """
        largest = self._of_all_ranks(lanes.first(sizes[-1]))
        self._results = tuple(torch.empty_like(result) for result in self._compute(largest, kv, *states))
        for size in reversed(sizes):
            inp = self._of_all_ranks(lanes.first(size))
            own = [[tensor[:size] for tensor in tensors] for tensors in (states, self._results)]
            lengths = self._lengths(size, inp.max_decode_seq_len)
            runs = [self._captured(replace(inp, max_decode_seq_len=length), kv, *own) for length in reversed(lengths)]
            self._graphs[size] = list(zip(lengths, reversed(runs), strict=True))
        self._kv, self._lanes, self._states, self._sizes = kv, lanes, states, sizes

    def _lengths(self, size: int, longest: int) -> list[int]:
        """The longest context of each graph of a size, ascending. The last one is `longest`."""
        at_once = self._longest_at_once(size)
        return [at_once, longest] if at_once and at_once < longest else [longest]

    def _captured(self, inp: ModelInput, kv: PagedKv, states: list[Tensor], results: list[Tensor]) -> Run:
        def run() -> None:
            for result, computed in zip(results, self._compute(inp, kv, *states), strict=True):
                result.copy_(computed)

        run()
        replay = self._agreed(lambda: self._make_graph(run))
        for result in results:
            result.fill_(float("nan"))
        replay()

        # The forward once more: what it writes into KV it writes again, so it gives what it gave.
        wanted = self._compute(inp, kv, *states)
        self._agreed(lambda: _check(results, wanted))
        return replay

    def _of_all_ranks(self, inp: ModelInput) -> ModelInput:
        """The input as each rank of the group has it."""
        if self._collectives is None:
            return inp
        return replace(inp, step=outside_steps(self._collectives.size, inp.num_decodes, graphs=True))

    def _agreed(self, act: Callable[[], T]) -> T:
        """What `act` gives, which computes nothing with other ranks. It raises on every rank if it does on one."""
        if self._collectives is None:
            return act()
        done, error = None, None
        try:
            done = act()
        except Exception as caught:  # noqa: BLE001 - raised again, after the other ranks know of it
            error = caught
        if isinstance(error, ConfigError):
            raise error
        device = self._results[0].device
        if not agree(self._collectives, error is None, device):
            raise NoGraph(str(error) if error else "another rank of the group has no such graph") from error
        return cast(T, done)

    def replay(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None, *states: Tensor
    ) -> tuple[Tensor, ...] | None:
        """The forward's results by a graph; None if it has none for this forward.

        Without requests it replays the smallest graph, whose lanes are then all padding. In a group it replays the
        graph that fits all ranks, in steps of graphs.
        """
        num, lanes = inp.num_decodes, self._lanes
        num_lanes = num
        if self._collectives is not None:
            assert inp.step is not None, "a rank of a group computes no forward without the step of all ranks"
            num_lanes = inp.step.padded
            if not inp.step.graphs:
                return None
        if lanes is None:
            return None

        only_decodes = not inp.extend_lens and on_layer is None
        has_masks = inp.tree_mask is None or lanes.input.tree_mask is not None
        is_short = inp.max_decode_seq_len <= lanes.input.max_decode_seq_len
        fits = only_decodes and num_lanes <= self._sizes[-1] and has_masks and is_short
        if kv is not self._kv or not fits:
            return None

        size = self._sizes[bisect_left(self._sizes, num_lanes)]
        lanes.fill(inp, size)
        for own, given in zip(self._states, states, strict=True):
            own[:num].copy_(given)
            own[num:size].zero_()
        next(run for length, run in self._graphs[size] if inp.max_decode_seq_len <= length)()
        self.num_replays += 1
        return tuple(result[:num] for result in self._results)

    def beside_graphs(self, inp: ModelInput) -> ModelInput:
        """The input of a forward without a graph. Where other ranks replay one, it pads to the size of that one."""
        step = inp.step
        if self._collectives is None or step is None or not step.graphs or not self._sizes:
            return inp
        assert step.padded <= self._sizes[-1], f"step {step}: other ranks replay a graph, but none is so large"
        size = self._sizes[bisect_left(self._sizes, step.padded)]
        return replace(inp, step=step._replace(num_tokens=(size,) * self._collectives.size))


def _check(results: list[Tensor], wanted: tuple[Tensor, ...]) -> None:
    """RuntimeError if the results of a graph are not those of the forward."""
    if not all(is_close(*pair) for pair in zip(results, wanted, strict=True)):
        raise RuntimeError("a graph's result differs from that of the forward that it captured")


class GraphedRunner:
    """A runner that replays decodes from graphs, once `capture` has been called for its KV memory."""

    def __init__(self, runner: Runner, make_graph: Capture | None = None) -> None:
        """`make_graph` is a CudaCapture by default; tests pass another."""
        self.runner = runner
        self.config, self.device, self.dtype = runner.config, runner.device, runner.dtype
        self.mapped_weight_bytes, self.private_weight_bytes = runner.mapped_weight_bytes, runner.private_weight_bytes
        self.kv_layout, self.fingerprint, self.logits = runner.kv_layout, runner.fingerprint, runner.logits
        self.collectives = runner.collectives
        self.why_none = "not captured yet"
        make_graph = make_graph or CudaCapture()
        self.longest_at_once = runner.longest_at_once
        self._graphs = Graphs(self._compute, make_graph, runner.longest_at_once, self.collectives)
        self.draft = GraphedDraft(runner.draft, make_graph) if isinstance(runner.draft, LoadedDraft) else runner.draft

    @property
    def max_graphed(self) -> int:
        """See Runner."""
        return self._graphs.largest

    @property
    def num_replays(self) -> int:
        """How often a graph has replaced a forward of the target."""
        return self._graphs.num_replays

    def capture(self, kv: PagedKv, max_batch: int, max_pages: int, width: int = 1, *, trees: bool = False) -> None:
        """Captures decodes of up to `max_batch` requests with contexts of up to `max_pages` pages.

        `width` is how many tokens of a request a speculative launch verifies. Without `trees`, decodes with a tree mask
        run without graphs. Each graph must give the runner's result.
        If one differs or cannot be captured, a warning is logged and decodes run without graphs; `why_none` says why.
        ConfigError as from CudaCapture.
        """
        drafts = [self.draft] if isinstance(self.draft, GraphedDraft) else []
        few = bucket_sizes(max_batch)

        def sizes(more: int) -> tuple[int, ...]:
            """One token of each request, or all that are verified, and `more` of each."""
            return tuple(sorted({size * (width_of + more) for size in few for width_of in (1, width)}))

        ahead = max([draft.group.lookahead - 1 for draft in drafts], default=0)  # that several draft layers read again
        lanes = Lanes(sizes(ahead)[-1], max_pages, kv.layout.page_size, self.device, trees=trees)
        reason = ""
        try:
            self._capture_target(kv, lanes, sizes(0))
            for draft in drafts:
                draft.capture(kv, lanes, sizes(ahead))
        except (ConfigError, GroupBroken):
            raise
        except Exception as error:  # noqa: BLE001 - a driver, an allocator or a kernel may raise anything
            reason = str(error)[:WHY_CHARS] or type(error).__name__
        if self.collectives is not None and not agree(self.collectives, not reason, self.device):
            reason = reason or "another rank of the group has none"
        if reason:
            self.why_none = reason
            log.warning("decoding without graphs", why=self.why_none)
            for graphs in (self._graphs, *(graph for draft in drafts for graph in draft.graphs)):
                graphs.forget()
            return
        self.why_none = ""
        log.info("decode graphs", sizes=len(sizes(0)), largest=sizes(0)[-1])

    def _capture_target(self, kv: PagedKv, lanes: Lanes, sizes: tuple[int, ...]) -> None:
        """In a group it raises NoGraph, on every rank, or GroupBroken: behind another failure of one rank, ranks would
        enter different collectives."""
        mixtures = [layer.feed for layer in self.config.layers if isinstance(layer.feed, ExpertsConfig)]
        are_grouped = all(is_grouped(feed, self.device) for feed in mixtures)
        if mixtures and self.collectives is not None:
            are_grouped = agree(self.collectives, are_grouped, self.device)
        if not are_grouped:
            raise NoGraph("the host reads how many tokens each expert has")
        try:
            self._graphs.capture(kv, lanes, sizes)
        except (ConfigError, NoGraph, GroupBroken):
            raise
        except Exception as error:
            if self.collectives is None:
                raise
            raise GroupBroken(f"graphs of all ranks cannot be captured: {str(error)[:WHY_CHARS]}") from error

    def _compute(self, inp: ModelInput, kv: PagedKv) -> tuple[Tensor, ...]:
        try:
            return (self.runner.forward(inp, kv),) if self.draft is None else self.runner.forward_with_features(inp, kv)
        except Exception as error:
            if self.collectives is None:
                raise
            reason = f"{type(error).__name__}: {error}"[:WHY_CHARS]
            raise GroupBroken(f"a forward that all ranks compute for a graph has failed: {reason}") from error

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See Runner.forward."""
        replayed = self._graphs.replay(inp, kv, on_layer)
        return self.runner.forward(self._graphs.beside_graphs(inp), kv, on_layer) if replayed is None else replayed[0]

    def forward_with_features(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """See Runner.forward_with_features."""
        replayed = self._graphs.replay(inp, kv, on_layer)
        if replayed is None:
            return self.runner.forward_with_features(self._graphs.beside_graphs(inp), kv, on_layer)
        return replayed[0], replayed[1]

    def hidden(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See Runner.hidden. Without graphs: only prompts are scored."""
        return self.runner.hidden(self._graphs.beside_graphs(inp), kv, on_layer)


class GraphedDraft:
    """A draft whose layers are replayed from graphs. Its head runs without: which rows it reads varies."""

    def __init__(self, draft: LoadedDraft, make_graph: Capture) -> None:
        self.draft = draft
        self.num_layers, self.group, self.feature_layers = draft.num_layers, draft.group, draft.feature_layers
        self.hidden_size, self.hidden_dtype, self.vocab_size = draft.hidden_size, draft.hidden_dtype, draft.vocab_size
        self.fuse, self.logits = draft.fuse, draft.logits
        self.likeliest, self.chain = partial(likeliest_by_logits, self), partial(chain_by_steps, self)
        at_once = draft.attention.longest_at_once
        self._layers = [Graphs(partial(self._compute, index), make_graph, at_once) for index in range(draft.num_layers)]
        self._writes = Graphs(self._write, make_graph, lambda _: None)  # the first layer without `attends`
        self.graphs = [*self._layers, self._writes]

    def capture(self, kv: PagedKv, lanes: Lanes, sizes: tuple[int, ...]) -> None:
        """Captures every layer; see Graphs.capture."""
        hidden_TE = self.draft.embedding_VE.new_zeros((sizes[-1], self.hidden_size))
        for graphs in self.graphs:
            graphs.capture(kv, lanes, sizes, hidden_TE)

    def _compute(self, index: int, inp: ModelInput, kv: PagedKv, hidden_TE: Tensor) -> tuple[Tensor]:
        return (self.draft.run_layer(index, inp, hidden_TE, kv),)

    def _write(self, inp: ModelInput, kv: PagedKv, hidden_TE: Tensor) -> tuple[()]:
        self.draft.run_layer(0, inp, hidden_TE, kv, attends=False)
        return ()

    def run_layer(
        self,
        index: int,
        inp: ModelInput,
        hidden_TE: Tensor,
        kv: PagedKv,
        on_layer: Callable[[int], None] | None = None,
        *,
        attends: bool = True,
    ) -> Tensor:
        """See Draft.run_layer."""
        graphs = self._layers[index] if attends else self._writes
        replayed = graphs.replay(inp, kv, on_layer, hidden_TE)
        if replayed is None:
            hidden_TE = self.draft.run_layer(index, inp, hidden_TE, kv, on_layer, attends=attends)
        elif attends:
            (hidden_TE,) = replayed
        return hidden_TE
