"""The requests of a decode worker: decides which of them gets rows and pages next.

add -> (enough pages, rows and job credit) -> admit: frames may land -> close -> take_staged
"""

from collections import OrderedDict
from itertools import count

from decode.prefill_peers import PrefillPeers
from decode.request import DecodeRequest
from decode.request_states import DecodeState
from protocol.messages_gateway import Assign, WorkerAddress
from runtime.clock import Deadlines
from scheduler.kv_book import PageState
from scheduler.planner import Planner
from transfer.landing.frame_receiver import FrameReceiver
from transfer.states import MOVES, TransferState


class Requests:
    """Every request that has not ended. Its states say which queue it is in.

    | its transfer | its queue |
    |---|---|
    | RESERVING | the line of its prefill worker |
    | REQUESTED, RECEIVING | the reservations, with a deadline |
    | DELIVERED | the staged requests, until it is RUNNING |

    The cost of a turn does not depend on their number.
    """

    def __init__(self, planner: Planner, receiver: FrameReceiver, peers: PrefillPeers, reservations_from: int) -> None:
        """Reservations are numbered from `reservations_from` on."""
        self.by_key: dict[tuple[str, int], DecodeRequest] = {}
        self._planner = planner
        self._receiver = receiver
        self._peers = peers
        self._numbers = count(reservations_from)
        self._lines: dict[int, OrderedDict[DecodeRequest, None]] = {}  # by prefill instance
        self.by_reservation: dict[int, DecodeRequest] = {}  # those whose KV is on its way
        self._late: Deadlines[DecodeRequest] = Deadlines()
        self._staged: list[DecodeRequest] = []

    def add(self, assign: Assign, prefill: WorkerAddress) -> DecodeRequest:
        """A new request, which waits for its turn."""
        request = self.by_key[assign.key] = DecodeRequest(assign, prefill, next(self._numbers))
        self._lines.setdefault(prefill.instance, OrderedDict())[request] = None
        return request

    def depending_on(self, instance: int) -> list[DecodeRequest]:
        """The requests that still need the prefill worker `instance`."""
        return [each for each in self.by_key.values() if each.prefill.instance == instance and not each.is_handed_over]

    # ---- RESERVING ----

    def admit(self) -> list[DecodeRequest]:
        """Reserves pages and rows for waiting requests, oldest first, and returns these requests.

        A request without job credit lets others pass. One without pages or rows holds the rest back, so none starves.
        """
        admitted: list[DecodeRequest] = []
        while (request := self._next()) is not None and self._reserve(request):
            admitted.append(request)
        return admitted

    def _next(self) -> DecodeRequest | None:
        """The oldest request whose prefill worker takes jobs. Looks only at the first in each worker's line."""
        firsts = [next(iter(line)) for instance, line in self._lines.items() if self._peers.takes_jobs(instance)]
        return min(firsts, key=lambda first: first.reservation, default=None)

    def _reserve(self, request: DecodeRequest) -> bool:
        assign, planner, peer = request.assign, self._planner, self._peers.by_instance[request.prefill.instance]
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

        self._leave_line(request)
        self.by_reservation[request.reservation] = request
        request.transfer.move(TransferState.REQUESTED)
        peer.sent(request.reservation, request.prompt_len)
        return True

    def _leave_line(self, request: DecodeRequest) -> None:
        line = self._lines[request.prefill.instance]
        del line[request]
        if not line:
            del self._lines[request.prefill.instance]

    # ---- REQUESTED and RECEIVING ----

    def expect(self, request: DecodeRequest, by: float, late: str) -> None:
        """Sets the deadline of a reserved request in seconds of the worker's clock, unless it is earlier already.

        `late` is the error if it passes.
        """
        if by < request.deadline:
            request.deadline, request.late = by, late
            self._late.set(request, by)

    def late(self, now: float) -> list[DecodeRequest]:
        """Reserved requests whose deadline has passed. Each is returned once."""
        return self._late.due(now)

    def close(self, request: DecodeRequest) -> bool:
        """No more frames land: KV is delivered, or not needed any more. False if it was not reserved or is closed."""
        state = request.transfer.state
        if state is TransferState.RESERVING:
            self._leave_line(request)
        is_reserved = self.by_reservation.pop(request.reservation, None) is not None
        if is_reserved:
            self._late.drop(request)
            self._receiver.release(request.reservation)
            self._peers.closed(request.prefill, request.reservation)
            if state is TransferState.DELIVERED:
                self._staged.append(request)
        if MOVES[state]:  # it has neither come whole nor failed
            request.transfer.move(TransferState.CANCELLED)
        return is_reserved

    # ---- DELIVERED ----

    @property
    def is_staging(self) -> bool:
        """Whether KV of a request is being copied, also of one that has ended during the copy."""
        return bool(self._staged)

    def take_staged(self) -> list[DecodeRequest]:
        """The delivered requests whose KV is on the device by now. Each is returned once, unless it has ended."""
        staged, self._staged, whole = self._staged, [], list[DecodeRequest]()
        for each in staged:
            (whole if self._planner.is_over(each.landing) else self._staged).append(each)
        return [each for each in whole if each.state is DecodeState.WAITING]
