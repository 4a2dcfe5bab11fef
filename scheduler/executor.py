"""Runs operations on one device: KV memory, page table, the rows that decode, FutureMap, streams.

    submit -> (forward stream) -> completed -> poll

It knows rows and pages, no requests. The planner decides what runs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from model.host_copies import HostCopies
from model.inputs import ModelInput, int64_column
from model.paged_kv import PagedKv
from model.runner import Runner
from model.sampler import NOT_A_TOKEN, sample
from protocol.errors import as_baton_error
from protocol.kv_layout import touched
from runtime.clock import Clock
from scheduler.batches import ForwardBatch, Relay, ScheduleBatch, draws_of
from scheduler.plan import CopyPages, Done, Fill, LayerWritten, Operation, Outcome, Owner, Plan, Spill, StepResult
from scheduler.row_tables import FutureMap, PageTable
from scheduler.streams import Event, Stream
from scheduler.warm_up import warm_up


@dataclass(eq=False)
class Launch:
    """A forward in flight. Once `copy_done` is done, `tokens_L` or `error` is set. It has no `batch` if none could be
    built; then `error` is set from the start."""

    ticket: int
    owners: tuple[Owner, ...]  # of the rows that it draws tokens for
    relay: Relay
    ships: bool
    batch: ForwardBatch | None = None
    written_pages_N: Tensor | None = None  # pages to stage to the host, layer by layer
    copy_done: Event | None = None
    tokens_L: Tensor | None = None  # on the host
    error: Exception | None = None
    computed_at: float | None = None  # when all layers were computed; None: the host cannot tell
    layers: deque[tuple[int, Event]] = field(default_factory=deque)  # (layer, its KV is written), filled while it runs
    input: ModelInput | None = None  # passed between segments, as are the logits
    logits_LV: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that its forward reads. They were made on the schedule stream."""
        batch = () if self.batch is None else self.batch.tensors
        written = () if self.written_pages_N is None else (self.written_pages_N,)
        return (*self.relay, *batch, *written)


class Executor:
    """`num_rows` and `max_pages` of a context size the page table. `debug` turns on checks of invariants.

    `forward_clock` notes when forwards end; it is for a forward stream that runs on the host. `staging` copies KV
    between a device and host memory, on its own stream, so that no forward waits for such a copy. `host` is where KV of
    choices that gave way is kept.
    """

    def __init__(
        self,
        runner: Runner,
        kv: PagedKv,
        *,
        num_rows: int,
        max_pages: int,
        forward: Stream,
        schedule: Stream,
        staging: Stream | None = None,
        host: HostCopies | None = None,
        forward_clock: Clock | None = None,
        debug: bool = False,
    ) -> None:
        self.runner = runner
        self.kv = kv
        self.page_table = PageTable(num_rows, max_pages, kv.device)
        self.running = ScheduleBatch.of((), kv.device)
        self.future_map = FutureMap(num_rows, kv.device, debug)
        self._forward = forward
        self._schedule = schedule
        self._staging = staging or forward
        self.host = host
        self._forward_clock = forward_clock
        self._debug = debug

        self.launches: deque[Launch] = deque()  # in flight
        self._copies: deque[tuple[int, Event, list[Tensor]]] = deque()  # (ticket, it is done, what it reads)
        self._copy_error: Exception | None = None

    def warm_up(self) -> None:
        """Compiles, loads and captures what forwards need. Called before the first launch. InternalError on failure.

        It writes into page 0, and blocks.
        """
        self._forward.wait(self._schedule.record())  # the schedule stream has filled weights and KV memory
        num_rows, max_pages = self.page_table.req_to_page.shape
        sizes = {"max_requests": num_rows - 1, "max_pages": max_pages}
        warm_up(self.runner, self.kv, self._forward, **sizes, host=self.host)

    def submit(self, operation: Operation) -> None:
        """Enqueues an operation."""
        if isinstance(operation, Plan):
            self._launch(operation)
            return

        if isinstance(operation, Spill | Fill):
            self._copy_to_host(operation)
            return

        sources_N, targets_N = (int64_column(pages, self.kv.device) for pages in (operation.sources, operation.targets))
        if isinstance(operation, CopyPages):
            self._enqueue(self._forward, operation.ticket, self.kv.copy_pages, sources_N, targets_N)
        else:
            staged_N = int64_column(operation.pages, self.kv.device)
            self._enqueue(self._staging, operation.ticket, self._stage_in, staged_N, sources_N, targets_N)

    def poll(self) -> list[Outcome]:
        """What has happened since the last call; at most one launch is reported as over. RuntimeError if a copy has
        failed."""
        if self._copy_error is not None:
            raise RuntimeError("a copy of KV pages has failed") from self._copy_error
        outcomes: list[Outcome] = []
        while self._copies and self._copies[0][1].done():
            outcomes.append(Done(self._copies.popleft()[0]))

        oldest = self.launches[0] if self.launches else None
        is_over = oldest is not None and oldest.copy_done is not None and oldest.copy_done.done()
        for launch in self.launches:
            while launch.layers and launch.layers[0][1].done():
                outcomes.append(LayerWritten(launch.ticket, launch.layers.popleft()[0]))
        if oldest is not None and is_over and not oldest.layers:  # a launch that is over adds no more layers
            self.launches.popleft()
            outcomes.append(self._result(oldest))
        return outcomes

    def close(self) -> None:
        """Finishes what is in flight and ends the streams."""
        self._forward.close()
        if self._staging is not self._forward:
            self._staging.close()
        self._schedule.close()

    # ---- copies ----

    def _stage_in(self, staged_N: Tensor, sources_N: Tensor, targets_N: Tensor) -> None:
        self.kv.stage_in(staged_N)
        self.kv.copy_pages(sources_N, targets_N)

    def _copy_to_host(self, operation: Spill | Fill) -> None:
        """Enqueues a copy of pages to host memory or back."""
        assert self.host is not None, "the planner has slots of host memory, the executor has none"
        pages_N, slots_N = (int64_column(each, self.kv.device) for each in (operation.pages, operation.slots))
        if isinstance(operation, Spill):
            self._staging.wait(self._forward.record())  # the launches that write these pages
            self._enqueue(self._staging, operation.ticket, self.host.spill, pages_N, slots_N)
        else:
            self._enqueue(self._staging, operation.ticket, self.host.fill, slots_N, pages_N)

    def _enqueue(self, stream: Stream, ticket: int, copy: Callable[..., None], *tensors: Tensor) -> None:
        """Enqueues a copy. The tensors of page numbers live until it is done, as a launch's do in `launches`.

        A copy on the staging stream may only touch pages that no launch uses yet.
        """
        stream.wait(self._schedule.record())
        stream.launch([partial(self._copy, copy)], *tensors)
        self._copies.append((ticket, stream.record(), list(tensors)))

    def _copy(self, copy: Callable[..., None], *tensors: Tensor) -> None:
        """Runs within a stream. A failure ends the worker, because it leaves unknown pages incomplete."""
        try:
            copy(*tensors)
        except Exception as error:  # noqa: BLE001 - raised again on the scheduler thread
            self._copy_error = error

    # ---- launches ----

    def _launch(self, plan: Plan) -> None:
        """Applies the changes of a plan and enqueues its forward. If no inputs can be built, the launch fails."""
        running, page_size = self.running, self.kv.layout.page_size
        for grant in plan.grants:
            self.page_table.write(grant)
        running.change(plan.leaves, plan.joins)
        assert len(running) == plan.num_decodes, f"{len(running)} rows decode, the planner has {plan.num_decodes}"

        running.advance()
        owners = running.members.owners
        if plan.chunks:
            owners = (*((draw.row, draw.generation) for draw in draws_of(plan.chunks)), *owners)
        launch = Launch(plan.ticket, owners, Relay.of(plan, running), plan.ships)
        try:
            if self._debug:
                running.check_mirrors()
            launch.batch = ForwardBatch.init_new(plan.chunks, running, self.page_table, page_size)
            if plan.ships and (written := self._pages_to_host(plan)):
                launch.written_pages_N = int64_column(written, self.kv.device)
        except Exception as error:  # noqa: BLE001 - a launch that cannot be built fails only its own rows
            launch.batch, launch.error = None, error

        self._forward.wait(self._schedule.record())
        self._forward.launch([self._resolve, self._compute, self._sample], launch)
        launch.copy_done = self._forward.record()
        running.set_input_ids_sentinel()
        self.launches.append(launch)

    def _pages_to_host(self, plan: Plan) -> Sequence[int]:
        """The pages that must be copied to the host once the launch has written its own."""
        pages: list[int] = []
        for chunk in plan.chunks:
            if chunk.host_from is not None:
                where = touched(chunk.host_from, chunk.end, self.kv.layout.page_size)
                pages += self.page_table.req_to_page_cpu[chunk.row, where].tolist()
        return self.kv.to_stage(pages)

    def _result(self, launch: Launch) -> StepResult:
        """The result of a launch that is over."""
        if launch.error is not None:
            return StepResult(launch.ticket, (), (), error=as_baton_error(launch.error).message)
        assert launch.tokens_L is not None
        tokens = self._forward.read_host(launch.tokens_L)
        runs: tuple[tuple[int, ...], ...] = tuple(zip(tokens, strict=True))
        not_finite: tuple[Owner, ...] = ()
        if NOT_A_TOKEN in tokens:
            not_finite = tuple(each for each, token in zip(launch.owners, tokens, strict=True) if token == NOT_A_TOKEN)
            runs = tuple(() if run == (NOT_A_TOKEN,) else run for run in runs)
        return StepResult(launch.ticket, launch.owners, runs, not_finite, computed_at=launch.computed_at)

    # ---- segments: on the forward stream ----

    def _resolve(self, launch: Launch) -> None:
        if launch.batch is None:
            return
        with _failures_of(launch):
            inp = launch.batch.input
            resolved_T = self.future_map.resolve_future(inp.input_ids_T, launch.batch.decode_owners_D)
            launch.input = replace(inp, input_ids_T=resolved_T)

    def _compute(self, launch: Launch) -> None:
        if launch.input is None:
            return
        with _failures_of(launch):
            on_layer = partial(self._layer_written, launch) if launch.ships else None
            launch.logits_LV = self.runner.forward(launch.input, self.kv, on_layer)
            if self._forward_clock is not None:
                launch.computed_at = self._forward_clock.now()

    def _sample(self, launch: Launch) -> None:
        (rows_L, owners_L), logits_LV = launch.relay, launch.logits_LV
        if logits_LV is not None and launch.batch is not None:
            with _failures_of(launch):
                tokens_L = sample(logits_LV, launch.batch.sampling)
                # The next launch is enqueued already and must not read NOT_A_TOKEN.
                self.future_map.stash(rows_L, tokens_L.clamp(min=0), owners_L)
                launch.tokens_L = self._forward.to_host(tokens_L)
        launch.input = launch.logits_LV = None
        if launch.error is not None:
            # The next launch is enqueued already, and other rows may be in it. They must not fail because these
            # rows hold no token. Tokens drawn from the zeros are ignored.
            self.future_map.stash(rows_L, torch.zeros_like(rows_L), owners_L)

    def _layer_written(self, launch: Launch, layer: int) -> None:
        written, pages_N = self._forward.mark(), launch.written_pages_N
        if pages_N is not None:
            self._staging.wait(written)
            self._staging.launch([partial(self._copy, partial(self.kv.stage_out, layer))], pages_N)
            written = self._staging.record()
        launch.layers.append((layer, written))


@contextmanager
def _failures_of(launch: Launch) -> Iterator[None]:
    """Stores a failure in its launch; the stream goes on."""
    try:
        with torch.inference_mode():
            yield
    except Exception as error:  # noqa: BLE001 - the top of the forward loop: fails this launch's rows and goes on
        launch.error = error
