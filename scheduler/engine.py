"""One worker's compute: KV memory, page table, FutureMap, streams, and the launches and copies in flight.

    launch -> (forward stream) -> completed -> tokens

The engine takes a ticket of the book for each launch and copy, and tells the book which are over. The roles decide what
to launch; the book decides who holds which pages.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from model.inputs import ModelInput, int64_column
from model.paged_kv import PagedKv
from model.runner import Runner
from model.sampler import sample
from protocol.kv_layout import touched
from runtime.clock import Clock
from scheduler.forward_batch import ForwardBatch, LaunchPlan
from scheduler.future_map import FutureMap
from scheduler.kv_book import Holding, KvBook
from scheduler.page_table import PageTable
from scheduler.req import Req
from scheduler.streams import Event, Stream
from scheduler.warm_up import warm_up


@dataclass(eq=False)
class Launch:
    """A forward in flight. Once `copy_done` is done, `tokens_L` or `error` is set, if there is any."""

    ticket: int
    plan: LaunchPlan
    batch: ForwardBatch
    written_pages_N: Tensor | None = None  # pages to stage to the host, layer by layer
    copy_done: Event | None = None
    tokens_L: Tensor | None = None  # on the host
    error: Exception | None = None  # of the forward
    computed_at: float | None = None  # when all layers were computed; None: the host cannot tell
    layers: deque[tuple[int, Event]] = field(default_factory=deque)  # (layer, its KV is written), filled while it runs
    input: ModelInput | None = None  # passed between segments, as are the logits
    logits_LV: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that its forward reads. They were made on the schedule stream."""
        return self.batch.tensors if self.written_pages_N is None else (*self.batch.tensors, self.written_pages_N)

    @property
    def is_complete(self) -> bool:
        """Whether its tokens, and the KV that is staged to the host, are on the host."""
        if self.copy_done is None or not self.copy_done.done():
            return False  # layers may still be added
        return not self.layers or self.layers[-1][1].done()


class Engine:
    """`book` keeps the rows and pages of `kv`. `debug` turns on checks of invariants.

    `forward_clock` notes when forwards end; it is for a forward stream that runs on the host. `staging` copies KV
    between a device and its twin, on its own stream, so that no forward waits for such a copy.
    """

    def __init__(
        self,
        runner: Runner,
        kv: PagedKv,
        book: KvBook,
        *,
        forward: Stream,
        schedule: Stream,
        device: torch.device,
        staging: Stream | None = None,
        forward_clock: Clock | None = None,
        debug: bool = False,
    ) -> None:
        assert book.pages.num_pages == kv.num_pages and book.page_size == kv.layout.page_size
        self.page_size = kv.layout.page_size
        self.vocab_size = runner.config.vocab_size
        self.kv = kv
        self.device = device
        self.book = book
        self.page_table = PageTable(book.rows.num_rows, book.max_pages, device)
        self.future_map = FutureMap(book.rows.num_rows, device, debug)
        self.in_flight: deque[Launch] = deque()
        self.num_launches = 0
        self._runner = runner
        self._forward = forward
        self._schedule = schedule
        self._staging = staging or forward
        self._forward_clock = forward_clock
        self._debug = debug

        self._copies: deque[tuple[int, Event, list[Tensor]]] = deque()  # (ticket, it is done, what it reads)
        self._copy_error: Exception | None = None

    def warm_up(self) -> None:
        """Compiles, loads and captures what forwards need. Called before the first launch. InternalError on failure."""
        assert not self.num_launches, "warming up writes into page 0 and blocks"
        self._forward.wait(self._schedule.record())  # the schedule stream has filled weights and KV memory
        book = self.book
        warm_up(self._runner, self.kv, self._forward, max_requests=book.max_requests, max_pages=book.max_pages)

    # ---- memory ----

    def write_pages(self, holding: Holding) -> None:
        """Writes the pages of a new holding into the page table."""
        self.page_table.write(holding.row, holding.pages)

    def add_pages(self, holding: Holding, added: Sequence[int]) -> None:
        """Writes the pages that the book has just added to a holding into the page table."""
        if added:
            self.page_table.grow(holding.row, added, len(holding.pages) - len(added))

    def land(self, in_twin: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> Event | None:
        """Copies landed pages from the host twin to the device, then `sources` to `targets`.

        The copies run beside the launches. The event is done when the pages may be decoded. Without a twin the result
        is None, and the next launch may decode them.
        """
        staged = self.kv.to_stage(in_twin)
        if not staged:
            self.copy_pages(sources, targets)
            return None
        self._enqueue(self._staging, self.kv.stage_in, staged)
        self._copy_pages(self._staging, sources, targets)
        return self._copies[-1][1]

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages in every layer, after the launches enqueued so far and before the next one."""
        self._copy_pages(self._forward, sources, targets)

    def _copy_pages(self, stream: Stream, sources: Sequence[int], targets: Sequence[int]) -> None:
        if sources:
            self._enqueue(stream, self.kv.copy_pages, sources, targets)

    def _enqueue(self, stream: Stream, copy: Callable[..., None], *pages: Sequence[int]) -> None:
        """Enqueues a copy with its own ticket, so that its pages are not reused before it is done.

        A copy on the staging stream may only touch pages that no launch uses yet. The tensors of page numbers live
        until it is done, as a launch's tensors do in `in_flight`.
        """
        tensors = [int64_column(each, self.device) for each in pages]
        ticket = self.book.next_ticket()
        stream.wait(self._schedule.record())
        stream.launch([partial(self._copy, copy)], *tensors)
        self._copies.append((ticket, stream.record(), tensors))

    def _copy(self, copy: Callable[..., None], *tensors: Tensor) -> None:
        """Runs within a stream. A failure ends the worker: nobody can tell which requests' KV is incomplete."""
        try:
            copy(*tensors)
        except Exception as error:  # noqa: BLE001 - raised again on the scheduler thread
            self._copy_error = error

    # ---- launches ----

    def launch(self, plan: LaunchPlan) -> Launch:
        """Enqueues one forward and counts its requests' progress as if it had succeeded."""
        batch = self._build(plan)
        for chunk in plan.chunks:
            chunk.req.num_computed = chunk.end
        for req in batch.samples:
            req.num_sampled += 1

        self.num_launches += 1
        written = self._pages_to_host(plan)
        launch = Launch(self.book.next_ticket(), plan, batch, int64_column(written, self.device) if written else None)
        self._forward.wait(self._schedule.record())
        self._forward.launch([self._resolve, self._compute, self._sample], launch)
        launch.copy_done = self._forward.record()

        if plan.running is not None:
            self.future_map.set_input_ids_sentinel(plan.running)
        self.in_flight.append(launch)
        return launch

    def _build(self, plan: LaunchPlan) -> ForwardBatch:
        """The launch's inputs. If building them fails, the running batch is restored."""
        if plan.running is None:
            return ForwardBatch.init_new(plan, self.page_table, self.page_size, self.device)
        before = plan.running.seq_lens_B, plan.running.seq_lens_cpu
        plan.running.advance()
        try:
            if self._debug:
                plan.running.check_mirrors()
            return ForwardBatch.init_new(plan, self.page_table, self.page_size, self.device)
        except Exception:
            plan.running.seq_lens_B, plan.running.seq_lens_cpu = before
            raise

    def take_completed(self) -> Launch | None:
        """Removes and returns the oldest launch if it has completed, else None."""
        if not self.in_flight or not self.in_flight[0].is_complete:
            return None
        launch = self.in_flight.popleft()
        self.collect()
        return launch

    def tokens(self, launch: Launch) -> list[tuple[Req, int]]:
        """The tokens that a completed launch sampled, perhaps sampler.NOT_A_TOKEN. Empty if there are none."""
        if launch.tokens_L is None:
            return []
        return list(zip(launch.batch.samples, self._forward.read_host(launch.tokens_L), strict=True))

    def collect(self) -> bool:
        """Reuses rows and pages that no launch, copy or transfer can touch any more. Whether there were any.

        RuntimeError if a copy has failed.
        """
        if self._copy_error is not None:
            raise RuntimeError("a copy of KV pages has failed") from self._copy_error
        while self._copies and self._copies[0][1].done():
            self._copies.popleft()

        oldest = [self.in_flight[0].ticket] if self.in_flight else []
        oldest += [self._copies[0][0]] if self._copies else []
        completed = min(oldest) - 1 if oldest else self.book.newest_ticket
        return self.book.collect(completed)

    def close(self) -> None:
        """Finishes what is in flight and ends the streams."""
        self._forward.close()
        if self._staging is not self._forward:
            self._staging.close()
        self._schedule.close()

    # ---- segments: on the forward stream ----

    def _resolve(self, launch: Launch) -> None:
        with _failures_of(launch):
            inp, owners_B = launch.batch.input, launch.batch.decode_owners_B
            if launch.batch.has_sentinels:
                resolved_T = self.future_map.resolve_future(inp.input_ids_T, owners_B)
                inp = replace(inp, input_ids_T=resolved_T)
            launch.input = inp

    def _compute(self, launch: Launch) -> None:
        if launch.input is None:
            return
        with _failures_of(launch):
            on_layer = partial(self._layer_written, launch) if launch.plan.ships else None
            launch.logits_LV = self._runner.forward(launch.input, self.kv, on_layer)
            if self._forward_clock is not None:
                launch.computed_at = self._forward_clock.now()

    def _sample(self, launch: Launch) -> None:
        batch, logits_LV = launch.batch, launch.logits_LV
        if logits_LV is not None and batch.sampling is not None:
            with _failures_of(launch):
                tokens_L = sample(logits_LV, batch.sampling)
                # The next launch is enqueued already and must not read NOT_A_TOKEN.
                self.future_map.stash(batch.stash_rows_L, tokens_L.clamp(min=0), batch.stash_owners_L)
                launch.tokens_L = self._forward.to_host(tokens_L)
        launch.input = launch.logits_LV = None
        if launch.error is not None:
            # The next launch is enqueued already, and other requests may be in it. They must not fail because these
            # rows hold no token. Tokens drawn from the zeros are ignored.
            self.future_map.stash(batch.stash_rows_L, torch.zeros_like(batch.stash_rows_L), batch.stash_owners_L)

    def _layer_written(self, launch: Launch, layer: int) -> None:
        written, pages_N = self._forward.mark(), launch.written_pages_N
        if pages_N is not None:
            self._staging.wait(written)
            self._staging.launch([partial(self._copy, partial(self.kv.stage_out, layer))], pages_N)
            written = self._staging.record()
        launch.layers.append((layer, written))

    def _pages_to_host(self, plan: LaunchPlan) -> Sequence[int]:
        """The pages that the launch writes and that must be copied to the host."""
        pages: list[int] = []
        for chunk in plan.chunks:
            if chunk.to_host:
                pages += chunk.req.held.pages[touched(chunk.start, chunk.end, self.page_size)]
        return self.kv.to_stage(pages)


@contextmanager
def _failures_of(launch: Launch) -> Iterator[None]:
    """Stores a failure in its launch; the stream goes on."""
    try:
        with torch.inference_mode():
            yield
    except Exception as error:  # noqa: BLE001 - the top of the forward loop: fails this launch's requests and goes on
        launch.error = error
