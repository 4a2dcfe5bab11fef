"""Runs operations on one device: KV memory, page table, the rows that decode, FutureMap, streams.

    submit -> (forward stream) -> completed -> poll

It knows rows and pages, no requests. The planner decides what runs.

A launch is one sequence of segments. With a draft it is two: the host prepares the next launch while the second runs.

    resolve, compute, sample
    propose, verify | extend

The lengths that the next launch needs are known after `verify`. Until then its plan waits in `submitted`. A launch
that proposes nothing is one sequence again, and the host knows the lengths.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from model.host_copies import HostCopies
from model.inputs import int64_column
from model.paged_kv import PagedKv
from model.runner import Runner
from model.sampler import sample
from protocol.kv_layout import touched
from runtime.clock import Clock
from scheduler.execution.batches import ForwardBatch, Relay, ScheduleBatch, draws_of
from scheduler.execution.future_map import FutureMap
from scheduler.execution.future_rows import DraftInput
from scheduler.execution.launch import Launch, failures_of
from scheduler.execution.page_table import PageTable
from scheduler.execution.streams import Event, Stream
from scheduler.execution.warm_up import warm_up
from scheduler.plan import (
    CopyPages,
    Done,
    Fill,
    LayerWritten,
    Operation,
    Outcome,
    Plan,
    Spill,
    StageIn,
    WriteDraft,
)
from scheduler.speculation.draft_batch import DraftBatch
from scheduler.speculation.draft_segments import extend, propose, verify
from scheduler.speculation.unwritten import Unwritten


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
        assert runner.draft is None or kv.layout.lookahead, "a draft's KV depends on tokens after its own"
        self.runner = runner
        self.kv = kv
        self.page_table = PageTable(num_rows, max_pages, kv.device)
        self.running = ScheduleBatch.of((), kv.device, speculates=runner.draft is not None)
        self.future_map = FutureMap(num_rows, kv.device, debug)
        self._forward = forward
        self._schedule = schedule
        self._staging = staging or forward
        self.host = host
        self._forward_clock = forward_clock
        self._debug = debug
        self._unwritten = Unwritten()

        self.submitted: deque[Operation] = deque()  # a plan whose lengths are not known yet, and what follows it
        self._applied: Plan | None = None  # its changes are made
        self._publishes = True  # the newest launch; if not, the host knows all lengths
        self._unread: dict[int, int] = {}  # see DraftBatch.init_new
        self.launches: deque[Launch] = deque()  # in flight
        self._copies: deque[tuple[int, Event, list[Tensor]]] = deque()  # (ticket, it is done, what it reads)
        self._copy_error: Exception | None = None

    def warm_up(self, width: int = 1, *, trees: bool = False) -> None:
        """Compiles, loads and captures what forwards need. Called before the first launch. InternalError on failure.

        It writes into page 0, and blocks. A launch verifies `width` tokens of a request, as a tree with `trees`.
        """
        self._forward.wait(self._schedule.record())  # the schedule stream has filled weights and KV memory
        num_rows, max_pages = self.page_table.req_to_page.shape
        sizes = {"max_requests": num_rows - 1, "max_pages": max_pages, "width": width}
        warm_up(self.runner, self.kv, self._forward, **sizes, host=self.host, trees=trees)

    def submit(self, operation: Operation) -> None:
        """Enqueues an operation. Operations run in this order."""
        self.submitted.append(operation)
        self._enqueue_submitted()

    def _enqueue_submitted(self) -> None:
        """Enqueues all that was submitted, up to a plan whose lengths are not known yet. That one is only applied."""
        while self.submitted:
            operation = self.submitted[0]
            if not isinstance(operation, Plan):
                self._copy_operation(operation)
            else:
                if operation is not self._applied:
                    self._applied = operation
                    self._apply(operation)
                if not self.future_map.is_ready(self.running):
                    return
                self._launch(operation)
            self.submitted.popleft()

    def _copy_operation(self, operation: CopyPages | StageIn | Spill | Fill | WriteDraft) -> None:
        if isinstance(operation, Spill | Fill):
            self._copy_to_host(operation)
            return
        if isinstance(operation, WriteDraft):
            self._enqueue(self._forward, operation.ticket, self._write_draft)
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
        self._enqueue_submitted()
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
            outcomes.append(oldest.result(self._forward))
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

    def _write_draft(self) -> None:
        if self.runner.draft is not None:
            with torch.inference_mode():
                self._unwritten.write(self.runner.draft, self.kv)

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

    def _apply(self, plan: Plan) -> None:
        """Makes the changes of a plan."""
        running = self.running
        for grant in plan.grants:
            self.page_table.write(grant)
        running.change(plan.leaves, plan.joins)
        assert len(running) == plan.num_decodes, f"{len(running)} rows decode, the planner has {plan.num_decodes}"
        if running.spec_info is None:
            return
        self._unread |= {join.draw.row: join.draw.generation for join in plan.joins if join.begins}
        if self._publishes:
            self.future_map.seed_seq_lens(plan.joins, self._schedule)
        else:
            running.spec_info = running.spec_info.resolved()

    def _launch(self, plan: Plan) -> None:
        """Enqueues the forward of a plan, which is applied. If no inputs can be built, the launch fails."""
        running, page_size = self.running, self.kv.layout.page_size
        speculates = running.spec_info is not None
        if not speculates:
            running.advance()
        elif self._publishes:
            self.future_map.resolve_seq_lens_cpu(running, self._schedule)
        owners = running.members.owners
        if plan.chunks:
            owners = (*((draw.row, draw.generation) for draw in draws_of(plan.chunks)), *owners)
        launch = Launch(plan.ticket, owners, Relay.of(plan, running), plan.ships, publishes=plan.num_steps > 0)
        try:
            if self._debug:
                running.check_mirrors()
            if speculates:
                known = running, self.page_table, page_size, self._unread
                launch.batch, launch.draft = DraftBatch.init_new(plan, *known, self.kv.layout.lookahead)
            else:
                launch.batch = ForwardBatch.init_new(plan.chunks, running, self.page_table, page_size)
            if plan.ships and (written := self._pages_to_host(plan)):
                launch.written_pages_N = int64_column(written, self.kv.device)
        except Exception as error:  # noqa: BLE001 - a launch that cannot be built fails only its own rows
            launch.batch, launch.draft, launch.error = None, None, error

        if not speculates:
            launch.copy_done = self._forwarded(launch, self._resolve, self._compute, self._sample)
        elif plan.num_steps:
            self.future_map.expect(self._forwarded(launch, self._propose, self._verify))
            launch.copy_done = self._forwarded(launch, self._extend)
            self._launched(running, proposes=True)
        else:
            launch.copy_done = self._forwarded(launch, self._propose, self._verify, self._extend)
            self._launched(running, proposes=False)
        running.set_input_ids_sentinel()
        self.launches.append(launch)

    def _launched(self, running: ScheduleBatch, *, proposes: bool) -> None:
        """Notes what a launch with a draft leaves behind: which lengths are known, and whose last token is unread."""
        assert running.spec_info is not None
        self._publishes, owners = proposes, dict(running.members.owners)
        if proposes:
            running.spec_info = DraftInput.launched(running.rows_B)
            self._unread = {row: owner for row, owner in self._unread.items() if owners.get(row) != owner}
        else:
            running.spec_info = running.spec_info.resolved()
            self._unread |= owners

    def _forwarded(self, launch: Launch, *segments: Callable[[Launch], None]) -> Event:
        """Enqueues segments of a launch. Returns an event that is done when they are."""
        self._forward.wait(self._schedule.record())
        self._forward.launch(segments, launch)
        return self._forward.record()

    def _pages_to_host(self, plan: Plan) -> Sequence[int]:
        """The pages that must be copied to the host once the launch has written its own."""
        pages: list[int] = []
        for chunk in plan.chunks:
            if chunk.host_from is not None:
                where = touched(chunk.host_from, chunk.end, self.kv.layout.page_size)
                pages += self.page_table.req_to_page_cpu[chunk.row, where].tolist()
        return self.kv.to_stage(pages)

    # ---- segments: on the forward stream ----

    def _resolve(self, launch: Launch) -> None:
        if launch.batch is None:
            return
        with failures_of(launch):
            inp = launch.batch.input
            resolved_T = self.future_map.resolve_future(inp.input_ids_T, launch.batch.decode_owners_D)
            launch.input = replace(inp, input_ids_T=resolved_T)

    def _compute(self, launch: Launch) -> None:
        if launch.input is None:
            return
        with failures_of(launch):
            launch.logits_LV = self.runner.forward(launch.input, self.kv, self._on_layer(launch))
            if self._forward_clock is not None:
                launch.computed_at = self._forward_clock.now()

    def _sample(self, launch: Launch) -> None:
        (rows_L, owners_L, _), logits_LV = launch.relay, launch.logits_LV
        if logits_LV is not None and launch.batch is not None:
            with failures_of(launch):
                tokens_L = sample(logits_LV, launch.batch.sampling)
                # The next launch is enqueued already and must not read NOT_A_TOKEN.
                self.future_map.stash(rows_L, tokens_L.clamp(min=0), owners_L)
                launch.tokens_L = self._forward.to_host(tokens_L)
        launch.input = launch.logits_LV = None
        if launch.error is not None:
            # The next launch is enqueued already, and other rows may be in it. They must not fail because these
            # rows hold no token. Tokens drawn from the zeros are ignored.
            self.future_map.stash(rows_L, torch.zeros_like(rows_L), owners_L)

    def _propose(self, launch: Launch) -> None:
        """A launch that proposes first writes what waits, even if it could not be built: the planner counts on that."""
        draft, own = self.runner.draft, launch.draft
        assert draft is not None
        with failures_of(launch):
            if launch.publishes:
                self._unwritten.write(draft, self.kv)
            if own is not None:
                launch.proposed = propose(draft, self.kv, self.future_map, own, self._unwritten)

    def _verify(self, launch: Launch) -> None:
        """Publishes the lengths behind a launch that proposes. The next launch waits for them, so one that has failed
        publishes those that it was given."""
        relay, seq_lens_L = launch.relay, launch.relay.seq_lens_L
        if launch.proposed is not None and launch.batch is not None and launch.draft is not None:
            with failures_of(launch):
                own, on_layer = launch.draft, self._on_layer(launch)
                launch.verified = verify(self.runner, self.kv, launch.batch, own, launch.proposed, on_layer)
                launch.tokens_L = self._forward.to_host(launch.verified.tokens_L)
                if launch.verified.shipped is not None:
                    launch.shipped = self._forward.to_host(launch.verified.shipped)
                if relay.rows_L.numel() and launch.verified.kept is not None:
                    seq_lens_L = torch.cat((seq_lens_L[: own.num_draws], launch.verified.kept.seq_lens_B))
            if self._forward_clock is not None:
                launch.computed_at = self._forward_clock.now()
        launch.proposed = None
        if launch.publishes:
            self.future_map.publish(relay.rows_L, seq_lens_L, relay.owners_L)

    def _extend(self, launch: Launch) -> None:
        """Stashes what the next launch reads: after a failure a token that is ignored, and no proposal."""
        rows_L, owners_L, _ = launch.relay
        tokens_L, extras = torch.zeros_like(rows_L), None
        if launch.verified is not None and launch.batch is not None and launch.draft is not None:
            with failures_of(launch):
                draft, on_layer = self.runner.draft, self._on_layer(launch)
                assert draft is not None
                own = launch.draft, launch.verified, self._unwritten
                tokens_L, extras = extend(draft, self.kv, launch.batch, *own, on_layer)
        launch.verified = None
        self.future_map.stash(rows_L, tokens_L, owners_L, extras)

    def _on_layer(self, launch: Launch) -> Callable[[int], None] | None:
        return partial(self._layer_written, launch) if launch.ships else None

    def _layer_written(self, launch: Launch, layer: int) -> None:
        written, pages_N = self._forward.mark(), launch.written_pages_N
        if pages_N is not None:
            self._staging.wait(written)
            self._staging.launch([partial(self._copy, partial(self.kv.stage_out, layer))], pages_N)
            written = self._staging.record()
        launch.layers.append((layer, written))
