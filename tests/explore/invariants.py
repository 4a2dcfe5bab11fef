"""What must be true of every worker after every step, whatever the schedule."""

from collections import Counter
from collections.abc import Iterator

from prefill.worker import PrefillWorker
from scheduler.execution.executor import Executor
from scheduler.plan import Plan
from scheduler.planning.kv_manager import Holding
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.cluster import Cluster, Worker
from tests.doubles.page_ledger import check_pages


def check_invariants(cluster: Cluster) -> None:
    """Ledgers, tables, mirrors; AssertionError says which does not hold."""
    for worker in cluster.workers:
        check_pages(worker.planner.kv_manager.pages)
        known = list(_reqs(worker))
        _check_host_pages(worker.planner)
        reqs = [req for req in known if req.holding]
        _check_rows(worker.planner, reqs)
        _check_pages(worker.planner, reqs)
        _check_running(worker.planner, cluster.executor(worker))
        assert len(worker.planner.in_flight) <= 2


def _reqs(worker: Worker) -> Iterator[Req]:
    """Everybody whom the worker knows."""
    if isinstance(worker, PrefillWorker):
        for job in worker.served.by_key.values():
            yield job.prompt
    else:
        for request in worker.served.by_key.values():
            yield from request.reqs


def _holdings(planner: Planner, reqs: list[Req]) -> list[Holding]:
    """What choices hold, and what waits for those that are copied back from host memory."""
    coming = [spilled.holding for spilled in planner.spills.away.values() if spilled.holding is not None]
    return [*[req.held for req in reqs], *coming]


def _check_rows(planner: Planner, reqs: list[Req]) -> None:
    rows = planner.kv_manager.rows
    held = [holding.row for holding in _holdings(planner, reqs)]
    retired = [row for entry in planner.kv_manager.retired for row in entry.rows]
    assert 0 not in held and len(set(held)) == len(held), f"rows are shared: {held}"
    assert sorted([*held, *retired, *rows._free]) == list(range(1, rows.num_rows)), "rows are lost, or held twice"
    assert planner.results._holders == {req.held.owner: req for req in reqs}, (
        "results go to others than those who hold the rows"
    )
    assert all(req.held.owner_number == rows.owner_number(req.held.row) for req in reqs)


def _check_pages(planner: Planner, reqs: list[Req]) -> None:
    pages = planner.kv_manager.pages
    num_holders = [0] * pages.num_pages
    for holding in _holdings(planner, reqs):
        for page in holding.pages:
            num_holders[page] += 1
    assert num_holders[0] == 0, "the padding page was handed out"
    assert num_holders == pages._holders, "references that nobody, or two, hold"


def _check_host_pages(planner: Planner) -> None:
    """Each host page is free, or one choice's, or waits for a copy."""
    kv_manager = planner.kv_manager
    if kv_manager.host_pages is None:
        return
    check_pages(kv_manager.host_pages)
    holders = Counter(host_page for spilled in planner.spills.away.values() for host_page in spilled.host_pages)
    retired = Counter(host_page for entry in kv_manager.retired for host_page in entry.host_pages)
    host_pages = range(kv_manager.host_pages.num_pages)
    assert [holders[host_page] for host_page in host_pages] == kv_manager.host_pages._holders, (
        "host pages are lost, or taken twice"
    )
    assert [retired[host_page] for host_page in host_pages] == kv_manager.host_pages._retired, (
        "host pages are lost in quarantine"
    )


def _check_running(planner: Planner, executor: Executor) -> None:
    """The planner's choices that decode are the executor's, in the same order; so are their pages and lengths."""
    batch, table = executor.running, executor.page_table
    batch.check_mirrors()
    assert not table.req_to_page[0].any(), "padding has pages"
    plans = [operation for operation in executor.submitted if isinstance(operation, Plan)]
    if planner.steps._waiting or any(plan is not executor._applied for plan in plans):
        return  # the executor does not know of this plan yet
    decoding = [
        (draw, length)
        for draw, length in zip(batch.draws, batch.seq_lens_cpu.tolist(), strict=True)
        if draw.row not in planner.roster.leaving
    ]
    assert [draw.row for draw, _ in decoding] == [planner.roster.rows[req] for req in planner.roster.decoding], (
        "planner and executor differ about who decodes"
    )
    for req, (draw, length) in zip(planner.roster.decoding, decoding, strict=True):
        if req.finish is not None:
            continue
        assert (req.held.row, req.held.owner_number) == (draw.row, draw.owner_number), "a choice sits at another's row"
        pages = req.held.pages[: req.held.num_granted]
        assert table.req_to_page[draw.row, : len(pages)].tolist() == pages, "the table names other pages"
        assert table.req_to_page_cpu[draw.row, : len(pages)].tolist() == pages, "the host's table names other pages"
        assert req.num_sampled <= req.sampling.max_tokens, "a choice is launched beyond its last token"
        assert req not in planner.late.reqs, "a late row decodes"
        if not planner.speculation.has_draft:
            assert length == req.num_written - len(plans), "a length is not that of its KV"
        else:  # what the launches in flight keep is not known yet
            assert req.prompt_len <= length <= req.longest, "a length is beyond its context"
