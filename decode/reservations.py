"""Decides when a request gets rows and pages.

    queue -> (enough pages, rows and job credit) -> reserved: frames may land -> close

It holds the requests whose KV is on its way from prefill.
"""

from collections import OrderedDict

from decode.prefill_peers import PrefillPeer, PrefillPeers
from decode.request import DecodeRequest
from runtime.clock import Clock, Deadlines
from scheduler.page_allocator import PageState
from scheduler.planner import Planner
from transfer.landing.frame_receiver import FrameReceiver

ASK_AGAIN_S = 5.0  # between two CancelJobs to a prefill worker that has not answered JobStopped


class Reservations:
    """Holds requests in RESERVING, in REQUESTED and RECEIVING, and closed ones whose pages prefill may still write.

    The cost of a turn does not depend on their number.
    """

    def __init__(self, planner: Planner, receiver: FrameReceiver, peers: PrefillPeers, clock: Clock) -> None:
        self._planner = planner
        self._clock = clock
        self._receiver = receiver
        self._peers = peers
        self._waiting: dict[int, OrderedDict[int, DecodeRequest]] = {}  # by prefill instance, then by reservation
        self._reserved: dict[int, DecodeRequest] = {}
        self._late: Deadlines[int] = Deadlines()  # of the reserved requests
        self._stopping: dict[int, DecodeRequest] = {}  # closed, but prefill may still write their pages
        self._ask_again: Deadlines[int] = Deadlines()

    def get(self, reservation: int) -> DecodeRequest | None:
        """The request whose KV is on its way under `reservation`."""
        return self._reserved.get(reservation)

    def sent_to(self, instance: int) -> list[DecodeRequest]:
        """The requests whose KV is on its way from the prefill worker `instance`."""
        return [request for request in self._reserved.values() if request.prefill.instance == instance]

    def queue(self, request: DecodeRequest) -> None:
        """Lets the request wait for its turn. Its reservation is higher than all earlier ones."""
        line = self._waiting.setdefault(request.prefill.instance, OrderedDict())
        line[request.reservation] = request

    def admit(self) -> list[DecodeRequest]:
        """Reserves pages and rows for waiting requests, oldest first, and returns these requests.

        A request without job credit lets others pass. One without pages or rows holds the rest back, so none starves.
        """
        admitted: list[DecodeRequest] = []
        while (found := self._next()) is not None:
            request, peer = found
            if not self._reserve(request, peer):
                break
            self._leave_line(request)
            peer.sent(request.reservation, request.prompt_len)
            admitted.append(request)
        return admitted

    def _next(self) -> tuple[DecodeRequest, PrefillPeer] | None:
        """The oldest request whose prefill worker takes jobs. Looks only at the first in each worker's line."""
        firsts = [
            (next(iter(line.values())), peer)
            for instance, line in self._waiting.items()
            if (peer := self._peers.get(instance)) is not None and peer.takes_jobs
        ]
        return min(firsts, key=lambda first: first[0].reservation, default=None)

    def _leave_line(self, request: DecodeRequest) -> None:
        """Removes the request from its line, if it waits there."""
        line = self._waiting.get(request.prefill.instance)
        if line is not None and line.pop(request.reservation, None) is not None and not line:
            del self._waiting[request.prefill.instance]

    def watch(self, request: DecodeRequest) -> None:
        """Notes the deadline of a reserved request, which has just been set."""
        self._late.set(request.reservation, request.deadline)

    def late(self, now: float) -> list[DecodeRequest]:
        """Reserved requests whose deadline has passed. Each is returned once."""
        return [self._reserved[reservation] for reservation in self._late.due(now)]

    def close(self, request: DecodeRequest) -> bool:
        """Ends the reservation: no more frames land. False if the request was not reserved yet."""
        self._leave_line(request)
        if self._reserved.pop(request.reservation, None) is None:
            return False

        self._late.drop(request.reservation)
        self._receiver.release(request.reservation)
        if (peer := self._peers.get(request.prefill.instance)) is not None:
            peer.settle(request.reservation)
        if self._receiver.may_be_written(request.reservation):
            self._stopping[request.reservation] = request
            self._ask_again.set(request.reservation, self._clock.now() + ASK_AGAIN_S)
        return True

    def unanswered(self, now: float) -> list[DecodeRequest]:
        """Closed requests whose prefill worker must be told again to stop, because its answer may be lost."""
        unanswered: list[DecodeRequest] = []
        for reservation in self._ask_again.due(now):
            if self._receiver.may_be_written(reservation) and reservation in self._stopping:
                unanswered.append(self._stopping[reservation])
                self._ask_again.set(reservation, now + ASK_AGAIN_S)
            else:
                self._stopping.pop(reservation, None)
        return unanswered

    def lost(self, instance: int) -> None:
        """Forgets the closed requests of a lost prefill worker: it writes no more once its process has ended."""
        for request in [request for request in self._stopping.values() if request.prefill.instance == instance]:
            del self._stopping[request.reservation]

    def _reserve(self, request: DecodeRequest, peer: PrefillPeer) -> bool:
        assign, planner = request.assign, self._planner
        if request.gets_kv:
            if not planner.admit(request.reqs, assign.num_tokens, PageState.RESERVED):
                return False
            prompt_pages = request.prompt.held.pages[: planner.layout.num_pages(request.prompt_len)]
            self._receiver.reserve(
                request.reservation,
                assign.attempt,
                request.prefill.instance,
                prompt_pages,
                request.prompt_len,
                peer.layout,
                in_place=peer.in_place,
            )
            if peer.in_place:
                request.pages_in_place = tuple(prompt_pages)

        self._reserved[request.reservation] = request
        return True
