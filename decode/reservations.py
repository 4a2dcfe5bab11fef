"""Who gets rows and pages, when, and which requests are on their way from prefill.

    queue -> (pages, rows and job credit are there) -> reserved: frames may land -> close

What it does not know: messages, tokens, what is decoded.
"""

from dataclasses import dataclass
from math import inf

from decode.prefill_peers import PrefillPeer, PrefillPeers
from decode.request import DecodeRequest
from scheduler.choice_pages import allocate_choices
from scheduler.engine import Engine
from scheduler.page_allocator import PageState
from transfer.interface import KvReceiver

ASK_AGAIN_S = 5.0  # between two words to a prefill worker that has not said that it stopped writing


@dataclass
class _Stopping:
    request: DecodeRequest
    ask_at: float | None = None  # seconds of the worker's clock; None until the first look


class Reservations:
    """Requests in RESERVING, by reservation those in REQUESTED and RECEIVING, and those whose pages prefill may still
    be writing although nobody waits for them."""

    def __init__(self, engine: Engine, receiver: KvReceiver, peers: PrefillPeers) -> None:
        self._engine = engine
        self._receiver = receiver
        self._peers = peers
        self._waiting: list[DecodeRequest] = []
        self._reserved: dict[int, DecodeRequest] = {}
        self._stopping: dict[int, _Stopping] = {}

    def get(self, reservation: int) -> DecodeRequest | None:
        """The request that is on its way under `reservation`."""
        return self._reserved.get(reservation)

    def sent_to(self, instance: int) -> list[DecodeRequest]:
        """The requests that are on their way from the prefill worker `instance`."""
        return [request for request in self._reserved.values() if request.prefill.instance == instance]

    def queue(self, request: DecodeRequest) -> None:
        """The request waits for its turn."""
        self._waiting.append(request)

    def admit(self) -> list[DecodeRequest]:
        """Reserves for those whose turn it is, oldest first, and returns them.

        Who lacks job credit lets others pass; who lacks pages or rows holds the rest back, so that nobody starves.
        """
        admitted: list[DecodeRequest] = []
        waiting: list[DecodeRequest] = []
        for index, request in enumerate(self._waiting):
            peer = self._peers.get(request.prefill.instance)
            if peer is None or not peer.takes_jobs:
                waiting.append(request)
                continue
            if not self._reserve(request, peer):
                waiting.extend(self._waiting[index:])
                break
            peer.sent(request.reservation, request.prompt_len)
            request.greeting = peer.greeting
            admitted.append(request)
        self._waiting = waiting
        return admitted

    def late(self, now: float) -> list[DecodeRequest]:
        """Reserved requests whose deadline has passed."""
        return [request for request in self._reserved.values() if request.deadline <= now]

    def close(self, request: DecodeRequest) -> bool:
        """Nothing more is expected for the request: no frame lands any more. False if it was not reserved yet."""
        if request in self._waiting:
            self._waiting.remove(request)
        if self._reserved.pop(request.reservation, None) is None:
            return False
        self._receiver.release(request.reservation)
        if (peer := self._peers.get(request.prefill.instance)) is not None:
            peer.settle(request.reservation)
        if self._receiver.may_be_written(request.reservation):
            self._stopping[request.reservation] = _Stopping(request)
        return True

    def unanswered(self, now: float) -> list[DecodeRequest]:
        """Closed requests whose prefill worker is to be told once more to stop: what it answered may have been lost."""
        late: list[DecodeRequest] = []
        for reservation, entry in list(self._stopping.items()):
            if not self._receiver.may_be_written(reservation):
                del self._stopping[reservation]
            elif entry.ask_at is None:
                entry.ask_at = now + ASK_AGAIN_S
            elif entry.ask_at <= now:
                entry.ask_at = now + ASK_AGAIN_S
                late.append(entry.request)
        return late

    def lost(self, instance: int) -> None:
        """A prefill worker is lost, and need not be told anything: once its process is gone, it writes no more."""
        for entry in self._stopping.values():
            if entry.request.prefill.instance == instance:
                entry.ask_at = inf

    def _reserve(self, request: DecodeRequest, peer: PrefillPeer) -> bool:
        assign, engine = request.assign, self._engine
        if request.kv_tokens:
            if engine.rows.num_free < assign.num_choices:
                return False
            choices = allocate_choices(
                engine.pages,
                request.prompt_len,
                request.kv_tokens,
                assign.num_choices,
                engine.page_size,
                PageState.RESERVED,
            )
            if choices is None:
                return False
            for req, pages in zip(request.reqs, choices, strict=True):
                engine.admit(req, pages)
            prompt_pages = choices[0][: engine.kv.layout.num_pages(request.prompt_len)]
            self._receiver.reserve(
                request.reservation,
                assign.attempt,
                request.prefill.instance,
                prompt_pages,
                request.prompt_len,
                peer.layout,
                in_place=bool(peer.seat),
            )
            if peer.seat:
                request.pages_in_place = tuple(prompt_pages)
        self._reserved[request.reservation] = request
        return True


def first_reservation(instance: int) -> int:
    """The reservations of one process go up from here. Another that is given its port later, to which a sender may
    come back with frames for the first, counts elsewhere."""
    return (instance % 2**31 << 32) + 1
