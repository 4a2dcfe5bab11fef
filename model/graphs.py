"""Decodes as CUDA graphs: a forward of a few hundred kernels becomes one call, for batches of a few sizes.

A batch is copied into fixed buffers and padded to the next captured size. Padding lanes read and write page 0 only. The
graphs of all sizes write their logits into one buffer. Chunks of prompts and larger batches run without graphs.
Shapes: B lanes, P pages of the longest context, n <= B requests, L rows of logits, V vocabulary.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import Runner
from runtime.log import get_log

log = get_log("graphs")

TOLERANCE: Final = 0.01  # of the largest logit: how far a graph may be from the forward that it captured

Run = Callable[[], None]
Capture = Callable[[Run], Run]  # takes a run to capture, returns its replay


def bucket_sizes(max_batch: int) -> tuple[int, ...]:
    """Batch sizes to capture: 1, 2, 4, 8, then steps of eight, up to the first that is at least `max_batch`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < max_batch:
        sizes.append(sizes[-1] + 8)
    return tuple(sizes[: bisect_left(sizes, max_batch) + 1])


class Lanes:
    """The inputs of `num_lanes` decodes, always in the same memory. A lane without a request is one token of page 0."""

    def __init__(self, num_lanes: int, num_pages: int, page_size: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.input = ModelInput(
            input_ids_T=zeros(num_lanes),
            positions_T=zeros(num_lanes),
            slots_T=zeros(num_lanes),
            page_table_BP=zeros(num_lanes, num_pages),
            seq_lens_B=zeros(num_lanes) + 1,
            extend_lens=(),
            extend_seq_lens=(),
            num_decodes=num_lanes,
            max_decode_seq_len=num_pages * page_size,
            logit_indices_L=torch.arange(num_lanes, device=device),
        )

    def first(self, count: int) -> ModelInput:
        """The first `count` lanes, in the same memory."""
        return replace(self.input.mapped(lambda lanes: lanes[:count]), num_decodes=count)

    def fill(self, decodes: ModelInput, count: int) -> None:
        """Copies `decodes` into the first lanes and pads up to `count`.

        The page table keeps old values behind a context, where it is not read.
        """
        own, n, width = self.input, decodes.num_decodes, decodes.page_table_BP.shape[1]
        own.page_table_BP[:n, :width].copy_(decodes.page_table_BP)
        own.page_table_BP[n:count, :1].zero_()
        for lane_B, value_n, padding in (
            (own.input_ids_T, decodes.input_ids_T, 0),
            (own.positions_T, decodes.positions_T, 0),
            (own.slots_T, decodes.slots_T, 0),
            (own.seq_lens_B, decodes.seq_lens_B, 1),
        ):
            lane_B[:n].copy_(value_n)
            lane_B[n:count].fill_(padding)


class CudaCapture:
    """Makes CUDA graphs that share memory: they never run at the same time, and none reads what another has left."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Run) -> Run:
        """A graph of `run`, which the caller has run before. Errors of torch pass through."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        self._pool = graph.pool()
        replay: Run = graph.replay
        return replay


class GraphedRunner:
    """A runner that replays decodes from graphs, once `capture` has been called for its KV memory."""

    def __init__(self, runner: Runner, make_graph: Capture | None = None) -> None:
        """`make_graph` is a CudaCapture by default; tests pass another."""
        self.runner = runner
        self.config, self.device, self.dtype = runner.config, runner.device, runner.dtype
        self.mapped_weight_bytes, self.private_weight_bytes = runner.mapped_weight_bytes, runner.private_weight_bytes
        self.kv_layout, self.fingerprint = runner.kv_layout, runner.fingerprint
        self.num_replays = 0

        self._make_graph = make_graph or CudaCapture()
        self._kv: PagedKv | None = None
        self._lanes: Lanes | None = None
        self._logits_LV: Tensor | None = None
        self._graphs: dict[int, Run] = {}
        self._sizes: tuple[int, ...] = ()

    def capture(self, kv: PagedKv, max_batch: int, max_pages: int) -> None:
        """Captures decodes of up to `max_batch` requests with contexts of up to `max_pages` pages.

        The largest size comes first, so that the others fit into its memory. Each graph must give the runner's result.
        If one differs or cannot be captured, a warning is logged and decodes run without graphs.
        """
        sizes = bucket_sizes(max_batch)
        lanes = Lanes(sizes[-1], max_pages, kv.layout.page_size, self.device)
        graphs: dict[int, Run] = {}
        try:
            logits_LV = torch.empty((sizes[-1], self.config.vocab_size), dtype=torch.float32, device=self.device)
            for size in reversed(sizes):
                graphs[size] = self._captured(lanes.first(size), kv, logits_LV[:size])
        except Exception as error:  # noqa: BLE001 - a driver, an allocator or a kernel may raise anything
            log.warning("decoding without graphs", why=str(error)[:200], captured=len(graphs))
            return

        self._kv, self._lanes, self._logits_LV, self._graphs, self._sizes = kv, lanes, logits_LV, graphs, sizes
        log.info("decode graphs", sizes=len(sizes), largest=sizes[-1])

    def _captured(self, inp: ModelInput, kv: PagedKv, logits_LV: Tensor) -> Run:
        def run() -> None:
            logits_LV.copy_(self.runner.forward(inp, kv))

        run()
        expected_LV = logits_LV.clone()
        replay = self._make_graph(run)
        logits_LV.fill_(float("nan"))
        replay()
        largest = max(1.0, float(expected_LV.abs().max()))
        if not torch.allclose(logits_LV, expected_LV, rtol=0.0, atol=TOLERANCE * largest):
            raise RuntimeError("a graph's result differs from that of the forward that it captured")
        return replay

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """See Runner.forward. Without requests it replays the smallest graph, whose lanes are then all padding."""
        num = inp.num_decodes
        lanes, logits_LV = self._lanes, self._logits_LV
        only_decodes = not inp.extend_lens and on_layer is None
        if lanes is None or logits_LV is None or kv is not self._kv or not only_decodes or num > self._sizes[-1]:
            return self.runner.forward(inp, kv, on_layer)

        size = self._sizes[bisect_left(self._sizes, num)]
        lanes.fill(inp, size)
        self._graphs[size]()
        self.num_replays += 1
        return logits_LV[:num]
