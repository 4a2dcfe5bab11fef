"""Rules that hold for every process after each of its turns, and for all processes at rest.

Pages: free + held + in quarantine = all; no page has two holders, and no page is reserved without an owner. The two
ends of a transfer agree with their requests. clients.py checks tokens, memory.py checks bytes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from decode.requests import DecodeState
from decode.worker import DecodeWorker
from gateway.routing.control import Control
from gateway.routing.pairing import Loads
from prefill.worker import PrefillWorker
from protocol.kv_layout import full_pages, pages_for
from scheduler.planning.kv_manager import Holding
from scheduler.planning.kv_pages import PageState
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.spills import Spilled
from tests.doubles.page_ledger import check_pages
from tests.explore_handoff.workers import WorkerProcess
from transfer.landing.transfer import FATAL
from transfer.states import OPEN, TransferState


def check_worker(process: WorkerProcess) -> None:
    """Raises AssertionError: the rule that is broken."""
    core = process.core
    if process.group is not None:
        process.group.check()
    if isinstance(core, PrefillWorker):
        _check_memory(core.planner, [job.prompt for job in core.served.by_key.values()])
        _check_sending(process, core)
    else:
        _check_memory(core.planner, [req for request in core.served.by_key.values() for req in request.reqs])
        _check_receiving(process, core)
        _check_refusals(process)


def check_gateway(control: Control) -> None:
    """What workers are thought to carry is what the attempts under way weigh."""
    loads = Loads()
    for record in control.dispatch.requests:
        for attempt in record.attempts.values():
            assert attempt.decode_load.rows == len(attempt.running), "a preempted choice is counted elsewhere"
            loads.add(attempt.decode, attempt.decode_load)
            if attempt.prefill is not None:
                loads.add(attempt.prefill, attempt.prefill_load)
    assert control.dispatch.loads == loads, f"loads are {control.dispatch.loads}, attempts weigh {loads}"
    places = [member.place for member in control.membership.members if member.place is not None]
    for group in {place.group for place in places}:
        found = {(place.epoch, place.size, place.rank) for place in places if place.group == group}
        epoch, size, _ = min(found)
        assert found == {(epoch, size, rank) for rank in range(size)}, f"of group {group}, only {found} are members"


def unrest(processes: Sequence[WorkerProcess], control: Control) -> Iterator[str]:
    """What is still held, queued, in flight or owed, although nobody waits for anything."""
    if len(control.dispatch.requests) or control.dispatch.loads:
        ids = [record.request_id for record in control.dispatch.requests]
        yield f"the gateway still has {ids}, loads {control.dispatch.loads}"
    alive = {process.instance for process in processes}
    for process in processes:
        for what in _held(process):
            yield f"{process.name} still has {what}"
        core = process.core
        peers = core._peers.by_instance.keys()
        if gone := peers - alive:
            yield f"{process.name} has not been told that {gone} are lost"


def owed(processes: Sequence[WorkerProcess]) -> Iterator[str]:
    """Credit that will never come back: what is left for the next request is less than at the start."""
    for process in processes:
        core = process.core
        if isinstance(core, DecodeWorker):
            for peer in core._peers.by_instance.values():
                if peer.queued:
                    yield f"{process.name} takes jobs {peer.queued} for queued at {peer.address.worker_id}"
        elif process.sender is not None:
            for instance, queue in process.sender._peers.items():
                if queue.credit.going_on:
                    yield f"{process.name} waits for credit from instance {instance}: {queue.credit._num_frames}"


def cached(processes: Sequence[WorkerProcess]) -> Iterator[str]:
    """Pages that are not free although nothing holds them and every cache was flushed."""
    for process in processes:
        pages = process.planner.kv_manager.pages.counts()
        if pages.free != pages.total:
            yield f"{process.name} still has {pages}"


def _held(process: WorkerProcess) -> Iterator[str]:
    core, planner = process.core, process.planner
    check_pages(planner.kv_manager.pages)
    pages = planner.kv_manager.pages.counts()
    if pages.free + pages.cached != pages.total:
        yield f"pages: {pages}"
    if planner.kv_manager.rows.num_free != planner.kv_manager.rows.num_rows - 1:
        yield "rows"
    slots = planner.kv_manager.host_page_counts()
    if slots.free != slots.total:
        yield f"host memory: {slots}"
    if planner.in_flight:
        yield "launches in flight"
    if isinstance(core, PrefillWorker):
        if core.served.by_key or core.served.of or core.prompts.waiting or core.prompts.computing:
            yield f"jobs {[(job.assign.request_id, job.transfer_state.value) for job in core.served.by_key.values()]}"
    elif core.served.by_key or core._requests.by_reservation or core._requests._lines or core._requests.is_staging:
        yield f"requests {[(request.key, request.transfer_state.value) for request in core.served.by_key.values()]}"
    if process.sender is not None and process.sender._transfers:
        yield f"transfers to send {[destination.reservation for destination in process.sender._transfers]}"
    if process.receiver is not None and process.receiver._transfers:
        yield f"transfers to receive {list(process.receiver._transfers)}"


def _holdings(planner: Planner, reqs: list[Req]) -> list[Holding]:
    """What choices hold, and what waits for those that are copied back from host memory."""
    holders: list[Req | Spilled] = [*reqs, *planner.spills.away.values()]
    return [holding for holder in holders if (holding := holder.holding) is not None]


def _check_memory(planner: Planner, reqs: list[Req]) -> None:
    """What check_pages() says of the pages among themselves is looked at in unrest(): this is done often."""
    kv_manager, away, holdings = planner.kv_manager, planner.spills.away.values(), _holdings(planner, reqs)
    pages, rows = kv_manager.pages, kv_manager.rows
    holders = [0] * pages.num_pages
    for holding in holdings:
        for page in holding.pages:
            holders[page] += 1
    assert holders == pages._holders, "pages that nobody, or two, hold"
    retired = Counter(page for entry in kv_manager.retired for page in entry.pages)
    assert [retired[page] for page in range(pages.num_pages)] == pages._retired, "pages are lost in quarantine"
    quarantined = sum(not holders[page] for page in retired)
    assert quarantined == pages._count[PageState.QUARANTINED], "a page is used, and to be reused"
    assert len(pages._free) == pages._count[PageState.FREE], "pages are free, and not to be had"
    cached = [] if kv_manager._cache is None else [page for page in range(pages.num_pages) if pages._is_kept[page]]
    idle = sum(not holders[page] and not retired[page] for page in cached)
    assert idle == pages._count[PageState.CACHED], "pages are cached, and not to be had"
    assert sum(pages._count.values()) == pages.num_pages - 1, "the ledger does not add up"
    assert len(cached) == (kv_manager._cache.num_pages if kv_manager._cache is not None else 0), (
        "the cache keeps other pages"
    )
    if kv_manager.host_pages is not None:
        held = Counter(slot for spilled in away for slot in spilled.host_pages)
        assert [held[slot] for slot in range(kv_manager.host_pages.num_pages)] == kv_manager.host_pages._holders, (
            "slots are lost, or shared"
        )
    used = [holding.row for holding in holdings]
    used += [row for entry in kv_manager.retired for row in entry.rows]
    assert len(used) + len(rows._free) == rows.num_rows - 1, "rows are lost"
    assert len({*used, *rows._free}) == rows.num_rows - 1, "rows are held twice"


def _check_sending(process: WorkerProcess, core: PrefillWorker) -> None:
    sender = process.sender
    assert sender is not None
    transfers = {job.destination: each for job in core.served.by_key.values() for each in job.transfers}
    assert sender._transfers == transfers, "transfers and jobs differ"
    for job in core.served.by_key.values():
        waits = job in core.prompts.waiting or job in core.prompts.learning._held
        state, queues = job.transfer_state, (waits, job in core.prompts.computing, job in core._late._at)
        assert sum(queues) == 1, f"a job waits, computes and has a deadline: {queues}"
        assert waits == (job.prompt.holding is None), "a job waits, and has pages"
        if job.moves_kv:
            expected = (TransferState.RESERVING, TransferState.REQUESTED, TransferState.SENDING)[queues.index(True)]
            assert state is expected, f"a job whose transfer is {state} is in the queue of {expected}"
        for transfer in job.transfers:
            assert transfer.source_pages == tuple(job.prompt.held.pages), "it sends another request's pages"
    assert all(job.destination.peer.instance in core._peers.by_instance for job in core.served.by_key.values()), (
        "a job of a stranger"
    )
    for queue in sender._peers.values():
        assert queue.credit.going_on <= len(sender._transfers), "bytes in flight of a transfer that has ended"


def _check_receiving(process: WorkerProcess, core: DecodeWorker) -> None:
    receiver, pages = process.receiver, core.planner.kv_manager.pages
    assert receiver is not None
    reserved = core._requests.by_reservation
    waiting = {request for line in core._requests._lines.values() for request in line}
    for request in core.served.by_key.values():
        state = request.transfer_state
        is_reserved = reserved.get(request.reservation) is request
        assert is_reserved + (request in waiting) + request.is_handed_over == 1, f"{request.key} is {state}"
        assert is_reserved == (state in OPEN) or not request.moves_kv, f"{request.key} is {state}"
        is_staged = state is TransferState.DELIVERED and request.state is DecodeState.WAITING
        assert is_staged == (request in core._requests._staged), f"{request.key} is {state}"
        assert not is_reserved or request.deadline < inf, "a wait without a deadline"
        expected = PageState.RESERVED if is_reserved else PageState.OWNED
        num_found = full_pages(request.start, core.planner.layout.page_size)
        found = [page for req in request.reqs if req.holding for page in req.held.pages[:num_found]]
        assert all(pages._state[page] is PageState.OWNED for page in found), f"{request.key} reads KV that is not there"
        own = {page for req in request.reqs if req.holding for page in req.held.pages[num_found:]}
        assert all(pages._state[page] is expected for page in own), f"pages of {request.key}, which is {state}"
        known = core._peers.by_instance.get(request.prefill.instance) is not None
        assert known or request.is_handed_over, f"{request.key} waits for a prefill worker that is lost"
    reqs = [req for request in core.served.by_key.values() for req in request.reqs]
    num_held = len({page for holding in _holdings(core.planner, reqs) for page in holding.pages})
    counts = pages.counts()
    assert counts.owned + counts.reserved == num_held, f"reserved without an owner: {counts}, {num_held} held"
    for reservation, request in reserved.items():
        assert core.served.by_key.get(request.key) is request, f"reservation {reservation} without an owner"
        transfer = receiver._transfers.get(reservation)
        assert (transfer is None) == (not request.moves_kv), f"reservation {reservation} cannot be received"
        if transfer is not None:
            page_size = core.planner.layout.page_size
            first, end = full_pages(request.start, page_size), pages_for(request.prompt_len, page_size)
            tail = request.prompt.held.pages[first:end]
            assert transfer._pages == tuple(tail), "frames may land in another request's pages"
            others = {page for req in reqs if req.holding and req not in request.reqs for page in req.held.pages}
            assert not others.intersection(tail), "frames may land in pages that another request reads"
            assert not any(pages._is_kept[page] for page in tail), "frames may land in pages that the cache keeps"
            assert request.transfers == (transfer,), f"{request.key} has the state of another transfer"
    assert set(receiver._transfers) <= set(reserved), "frames may land for a request that is gone"
    for peer in core._peers.by_instance.values():
        assert set(peer.queued) <= set(reserved), "a job that has ended still takes credit"
        assert peer.tokens_queued == sum(peer.queued.values()), "job credit is counted wrong"


def _check_refusals(process: WorkerProcess) -> None:
    """A frame that nobody has damaged is right, or it is late, or it comes twice."""
    assert process.receiver is not None
    if not process.world.scenario.fate.damaged:
        wrong = [reason for reason in FATAL if process.receiver.counters.get(f"rejected_{reason}")]
        assert not wrong, f"frames were refused because of {wrong}, and nobody has damaged any"


def holders(processes: Sequence[WorkerProcess], request_id: str) -> list[str]:
    """Who still knows of a request."""
    found: list[str] = []
    for process in processes:
        core = process.core
        if isinstance(core, PrefillWorker):
            ids = {job.assign.request_id for job in core.served.by_key.values()}
        else:
            ids = {request.assign.request_id for request in core.served.by_key.values()}
        if request_id in ids:
            found.append(process.name)
    return found
