"""The receiving side of one reservation as a state machine: which frame may land where, and when it is complete. Pure.

It begins in REQUESTED (transfer/states.py). A (layer, page) lands at most once, and nothing lands in any state but
REQUESTED and RECEIVING. The last frame may arrive at any time: first, last or in between. If frames keep their order,
what is missing after it never arrives. The events are the receiver's reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import WireError
from protocol.frame import LAST_MESSAGE, Check, FrameHeader, LastMessage, extend_digest
from protocol.kv_layout import KvLayout, full_pages
from transfer.plan import Copy, Shard, moves_of, start_fault
from transfer.states import OPEN, TRANSITIONS, TransferState, advance


class Rejection(StrEnum):
    """Why a frame was not landed. A FATAL one from the right sender means that the KV cannot be used."""

    MALFORMED = "malformed"
    UNKNOWN_RESERVATION = "unknown_reservation"
    WRONG_SENDER = "wrong_sender"
    WRONG_ATTEMPT = "wrong_attempt"
    NOT_RECEIVING = "not_receiving"  # already delivered or failed
    ALREADY_LANDED = "already_landed"
    PARTLY_LANDED = "partly_landed"
    LAYER_RANGE = "layer_range"
    PAGE_RANGE = "page_range"
    NUM_TOKENS = "num_tokens"
    SIZE = "size"
    CHECK_KIND = "check_kind"  # a checksum of bytes instead of a device sum, or the reverse
    CHECKSUM = "checksum"


FATAL = frozenset(Rejection) - {
    Rejection.UNKNOWN_RESERVATION,
    Rejection.WRONG_SENDER,
    Rejection.WRONG_ATTEMPT,
    Rejection.NOT_RECEIVING,
    Rejection.ALREADY_LANDED,
}


@dataclass(frozen=True)
class FirstFrame:
    """The first frame of a reservation has landed: REQUESTED becomes RECEIVING."""

    reservation: int


@dataclass(frozen=True)
class Delivered:
    """Every announced frame has landed and the digest agrees. No frame is accepted any more.

    `on_device`: the KV is where the device computes. Otherwise it is in host memory and must still be copied there.
    """

    reservation: int
    last: LastMessage
    on_device: bool = False


@dataclass(frozen=True)
class TransferFailed:
    """The KV of this reservation cannot be used. No frame is accepted any more; release() is still due."""

    reservation: int
    reason: str


@dataclass(frozen=True)
class CreditReturned:
    """Payload bytes that left the receiver's queue, landed or not, since the last poll. Send a DataCredit for them.

    The instance is only claimed by frames. Ignore it if it is not a connected prefill worker.
    """

    sender_instance: int
    reservation: int
    num_bytes: int


@dataclass(frozen=True)
class FrameRejected:
    """A frame was not landed."""

    reason: Rejection


@dataclass(frozen=True)
class LastInDoubt:
    """Every KV frame of this reservation has arrived, but not the last frame; and a damaged frame of unknown sender
    came. That was the last frame, or the last frame is about to arrive."""

    reservation: int


TransferEvent = FirstFrame | Delivered | TransferFailed | LastInDoubt  # of one reservation
ReceiverEvent = TransferEvent | CreditReturned | FrameRejected


class ReceiveTransfer:
    """One reservation: its pages, what has landed in them, and what the sender announced. Frames use the sender's pages
    (layout `sent`), whose size may differ from ours. The layers of `sent` are the first of ours, or all."""

    def __init__(
        self,
        layout: KvLayout,
        attempt: int,
        sender_instance: int,
        pages: Sequence[int],
        num_tokens: int,
        sent: KvLayout | None = None,
        in_place: bool = False,
        on_device: bool = False,
        in_order: bool = False,
        start: int = 0,
    ) -> None:
        """`pages`: of tokens from `start` on. `sent`: by default our own layout. `in_place`: the sender writes valid
        slots itself and frames are headers. `on_device`: only a device reads the pages. `in_order`: frames arrive in
        the order in which they were sent."""
        self._sent = sent or layout
        fault = start_fault(start, num_tokens, layout.page_size, self._sent.page_size)
        assert fault is None, fault
        assert len(pages) == layout.num_pages(num_tokens - start), (len(pages), num_tokens, start)

        self.state = TransferState.REQUESTED
        self.last: LastMessage | None = None
        self.is_in_place = in_place
        self.is_on_device = on_device

        self._in_order = in_order
        self._attempt = attempt
        self._sender_instance = sender_instance
        self._layout = layout
        self._pages = tuple(pages)
        self._plans: dict[tuple[int, int, int], Copy] = {}  # by (layer group, page_start, num_pages)
        self._start = start
        self._num_tokens = num_tokens
        self._first_page = full_pages(start, self._sent.page_size)  # of the sender's pages that are to arrive
        self._num_pages = self._sent.num_pages(num_tokens - start)  # of the same, in each layer
        self._claimed = bytearray(
            self._sent.num_layers * self._num_pages
        )  # 1 if (layer, page) has landed or is landing
        self._num_pages_landed = 0  # over all layers
        self._num_frames = 0  # KV frames landed
        self._digest = 0

    def owns(self, header: FrameHeader) -> bool:
        """Whether the frame is of this transfer's sender and attempt."""
        return header.sender_instance == self._sender_instance and header.attempt == self._attempt

    @property
    def lacks_last(self) -> bool:
        """Whether every KV frame has arrived but the last frame has not."""
        return self.last is None and self.state in OPEN and 0 not in self._claimed

    def take(
        self, header: FrameHeader, payload: Sequence[memoryview] = (), damage: Rejection | None = None
    ) -> Copy | list[ReceiverEvent]:
        """Takes a frame that has arrived, with the `damage` that was found. A KV frame that may land is a copy of its
        payload to its place in the layer, and landed() is due; its pages are claimed at once, so that a frame lands at
        most once. Otherwise it is what follows: a refusal, or what the last frame completes."""
        if damage is not None:
            return self._refused(header, damage)
        if header.sender_instance != self._sender_instance:
            return self._refused(header, Rejection.WRONG_SENDER)
        if header.attempt != self._attempt:
            return self._refused(header, Rejection.WRONG_ATTEMPT)
        if self.state not in OPEN:
            return self._refused(header, Rejection.NOT_RECEIVING)
        if header.is_last:
            return self._take_last(header, payload)

        reason = self._misfit(header) or self._claim(header)
        if reason is None and payload and self.is_in_place:
            reason = Rejection.SIZE
        if reason is None and self.is_on_device and header.check != Check.DEVICE_SUM:
            reason = Rejection.CHECK_KIND
        return self._copy(header) if reason is None else self._refused(header, reason)

    def landed(self, header: FrameHeader, damage: Rejection | None = None) -> list[ReceiverEvent]:
        """The KV of a frame that take() let land is in place, or is damaged there. Returns what follows."""
        if damage is not None:
            return self._refused(header, damage)
        self._num_pages_landed += header.num_pages
        self._num_frames += 1
        self._digest = extend_digest(self._digest, header)
        return self._received(header)

    def release(self) -> None:
        """The pages are no longer ours. A delivered or failed reservation keeps its state."""
        if self.state in OPEN:
            self.state = advance(TRANSITIONS, self.state, TransferState.CANCELLED)

    def _take_last(self, header: FrameHeader, payload: Sequence[memoryview]) -> list[ReceiverEvent]:
        if self.last is not None:
            return self._refused(header, Rejection.ALREADY_LANDED)
        if (header.page_start, header.num_pages, header.num_tokens) != (0, 0, 0):
            return self._refused(header, Rejection.PAGE_RANGE)
        try:
            self.last = LAST_MESSAGE.decode(b"".join(payload))
        except WireError:
            return self._refused(header, Rejection.MALFORMED)
        return self._received(header)

    def _refused(self, header: FrameHeader, reason: Rejection) -> list[ReceiverEvent]:
        """A fatal reason fails the transfer, if the frame is the right sender's."""
        events: list[ReceiverEvent] = [FrameRejected(reason)]
        if reason in FATAL and self.state in OPEN and self.owns(header):
            events.append(self._failed(header, f"frame {header.sequence} was refused: {reason}"))
        return events

    def _failed(self, header: FrameHeader, reason: str) -> TransferFailed:
        """The KV cannot be used."""
        self.state = advance(TRANSITIONS, self.state, TransferState.FAILED)
        return TransferFailed(header.reservation, reason)

    def _misfit(self, header: FrameHeader) -> Rejection | None:
        start, count = header.page_start, header.num_pages
        end = self._first_page + self._num_pages
        if header.layer >= self._sent.num_layers:
            return Rejection.LAYER_RANGE
        if count < 1 or start < self._first_page or start + count > end:
            return Rejection.PAGE_RANGE
        if header.num_tokens != self._sent.tokens_in(self._num_tokens, start, count):
            return Rejection.NUM_TOKENS
        layer = self._sent.layer(header.layer)
        in_pages, in_slots = count * layer.page_bytes, header.num_tokens * 2 * layer.token_bytes
        if header.payload_bytes != (in_slots if self.is_in_place else in_pages):
            return Rejection.SIZE
        return None

    def _claim(self, header: FrameHeader) -> Rejection | None:
        first = header.layer * self._num_pages + header.page_start - self._first_page
        end = first + header.num_pages
        taken = self._claimed.count(1, first, end)
        if taken:
            return Rejection.ALREADY_LANDED if taken == header.num_pages else Rejection.PARTLY_LANDED
        self._claimed[first:end] = b"\x01" * header.num_pages
        return None

    def _copy(self, header: FrameHeader) -> Copy:
        key = self._sent.place(header.layer)[0], header.page_start, header.num_pages
        if key not in self._plans:
            theirs, ours = self._sent.layer(header.layer), self._layout.layer(header.layer)
            first_token = header.page_start * theirs.page_size
            payload = Shard(theirs, range(header.num_pages), first_token=first_token)
            heads, tokens = range(theirs.num_kv_heads), range(first_token, first_token + header.num_tokens)
            moves = moves_of(payload, Shard(ours, self._pages, first_token=self._start), heads, tokens)
            self._plans[key] = Copy(moves, theirs.page_bytes, ours.page_bytes)
        return self._plans[key]

    @property
    def _may_get_more(self) -> bool:
        """After the last frame: whether KV frames may still arrive or are being checked."""
        return not self._in_order or self._claimed.count(1) > self._num_pages_landed

    def _received(self, header: FrameHeader) -> list[ReceiverEvent]:
        events: list[ReceiverEvent] = []
        if self.state is TransferState.REQUESTED:
            self.state = advance(TRANSITIONS, self.state, TransferState.RECEIVING)
            events.append(FirstFrame(header.reservation))
        if self.last is None:
            return events

        whole = self._num_pages_landed == len(self._claimed)
        if not whole and self._num_frames < self.last.num_frames and self._may_get_more:
            return events

        if not whole or self._num_frames != self.last.num_frames:
            reason = (
                f"{self.last.num_frames} frames were announced; {self._num_frames} landed with "
                f"{self._num_pages_landed} of {len(self._claimed)} pages"
            )
            return [*events, self._failed(header, reason)]
        if self._digest != self.last.digest:
            reason = f"the digest of what landed is {self._digest:#x}, the sender announced {self.last.digest:#x}"
            return [*events, self._failed(header, reason)]

        self.state = advance(TRANSITIONS, self.state, TransferState.DELIVERED)
        return [*events, Delivered(header.reservation, self.last, self.is_on_device)]
