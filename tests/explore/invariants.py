"""What must be true of every worker after every step, whatever the schedule."""

from collections import Counter
from collections.abc import Iterator

from prefill.worker import PrefillWorker
from scheduler.req import Req
from scheduler.schedule_batch import ScheduleBatch
from tests.cluster import Cluster, Worker


def check_invariants(cluster: Cluster) -> None:
    """Ledgers, tables, mirrors; AssertionError says which does not hold."""
    for worker in cluster.workers:
        worker.engine.book.pages.check()
        reqs = [req for req in _reqs(worker) if req.holding]
        _check_rows(worker, reqs)
        _check_pages(worker, reqs)
        if not isinstance(worker, PrefillWorker):
            _check_running(worker._running.batch)
        assert len(worker.engine.in_flight) <= 2


def _reqs(worker: Worker) -> Iterator[Req]:
    """Everybody whom the worker knows."""
    if isinstance(worker, PrefillWorker):
        for job in worker._jobs.values():
            yield job.prompt
    else:
        for request in worker._requests.values():
            yield from request.reqs


def _check_rows(worker: Worker, reqs: list[Req]) -> None:
    rows, table = worker.book.rows, worker.engine.page_table.req_to_page
    held = [req.held.row for req in reqs]
    retired = [row for entry in worker.engine.book.retired._entries for row in entry.rows]
    assert 0 not in held and len(set(held)) == len(held), f"rows are shared: {held}"
    assert sorted([*held, *retired, *rows._free]) == list(range(1, rows.num_rows)), "rows are lost, or held twice"
    for req in reqs:
        assert req.held.generation == rows.generation(req.held.row)
        assert table[req.held.row, : len(req.held.pages)].tolist() == req.held.pages, "the table names other pages"
    assert not table[0].any(), "padding has pages"


def _check_pages(worker: Worker, reqs: list[Req]) -> None:
    pages = worker.engine.book.pages
    holders = Counter(page for req in reqs for page in req.held.pages)
    assert 0 not in holders, "the padding page was handed out"
    assert [holders[page] for page in range(pages.num_pages)] == pages._refs, "references that nobody, or two, hold"


def _check_running(batch: ScheduleBatch | None) -> None:
    if batch is None:
        return
    assert batch.seq_lens_B.tolist() == batch.seq_lens_cpu.tolist(), "mirrors differ"
    assert len(batch.reqs) == len(batch.rows_B) == len(batch.input_ids_B) == len(batch.seq_lens_B)
    for req, row, length in zip(batch.reqs, batch.rows_B.tolist(), batch.seq_lens_cpu.tolist(), strict=True):
        assert req.holding is None or req.holding.row == row, "a request sits at the row of another"
        if req.finish is None:
            assert req.num_sampled <= req.sampling.max_tokens, "a request is launched beyond its last token"
            assert length == req.prompt_len + req.num_sampled - req.num_replayed - 1, "a length is not that of its KV"
