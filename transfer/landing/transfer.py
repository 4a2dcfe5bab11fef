"""The receiving side of one reservation as a state machine: which frame may land where, and when it is complete. Pure.

    REQUESTED --first frame--> RECEIVING --all landed, digest agrees--> DELIVERED
        any of the first two --> CANCELLED (released) | FAILED

A (layer, page) lands at most once, and nothing lands in any state but the first two. The last frame may arrive at any
time: first, last or in between. If frames keep their order, what is missing after it never arrives.
"""

from collections.abc import Sequence
from enum import StrEnum

from protocol.frame import FrameHeader, LastMessage, extend_digest
from protocol.kv_layout import KvLayout, full_pages
from runtime.state_table import advance
from transfer.landing.events import Rejection
from transfer.plan.copying import Copy
from transfer.plan.frames import start_fault
from transfer.plan.reslice import Shard, moves_of


class ReceiveState(StrEnum):
    """The state of a reservation, as decode's data plane sees it."""

    REQUESTED = "requested"
    RECEIVING = "receiving"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    FAILED = "failed"


_ENDS = frozenset({ReceiveState.CANCELLED, ReceiveState.FAILED})
RECEIVE_MOVES: dict[ReceiveState, frozenset[ReceiveState]] = {
    ReceiveState.REQUESTED: _ENDS | {ReceiveState.RECEIVING},
    ReceiveState.RECEIVING: _ENDS | {ReceiveState.DELIVERED},
    ReceiveState.DELIVERED: frozenset(),
    ReceiveState.CANCELLED: frozenset(),
    ReceiveState.FAILED: frozenset(),
}
OPEN = frozenset({ReceiveState.REQUESTED, ReceiveState.RECEIVING})


class ReceiveTransfer:
    """One reservation: its pages, what has landed in them, and what the sender announced. Frames use the sender's pages
    (layout `sent`), whose size may differ from ours."""

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

        self.state = ReceiveState.REQUESTED
        self.last: LastMessage | None = None
        self.failure = ""  # the reason, when FAILED
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
        self._claimed = bytearray(layout.num_layers * self._num_pages)  # 1 if (layer, page) has landed or is landing
        self._num_pages_landed = 0  # over all layers
        self._num_frames = 0  # KV frames landed
        self._digest = 0

    def refuse_stranger(self, header: FrameHeader) -> Rejection | None:
        """Why the frame does not belong here: another sender or another attempt. None if it belongs."""
        if header.sender_instance != self._sender_instance:
            return Rejection.WRONG_SENDER
        if header.attempt != self._attempt:
            return Rejection.WRONG_ATTEMPT
        return None

    @property
    def lacks_last(self) -> bool:
        """Whether every KV frame has arrived but the last frame has not."""
        return self.last is None and self.state in OPEN and 0 not in self._claimed

    def accept(self, header: FrameHeader) -> Copy | Rejection | None:
        """The copy of a KV frame's payload to its place in the layer, or why it may not land. None: the last frame may,
        which has nothing to copy. Claims the pages at once, so that a frame lands at most once."""
        stranger = self.refuse_stranger(header)
        if stranger is not None:
            return stranger
        if self.state not in OPEN:
            return Rejection.NOT_RECEIVING
        if header.is_last:
            return self._misfit_of_last(header)
        return self._misfit(header) or self._claim(header) or self._copy(header)

    def landed(self, header: FrameHeader) -> None:
        """The payload of an accepted KV frame is in place."""
        self._num_pages_landed += header.num_pages
        self._num_frames += 1
        self._digest = extend_digest(self._digest, header)
        self._received()

    def announced(self, last: LastMessage) -> None:
        """The accepted last frame had this message."""
        assert self.last is None
        self.last = last
        self._received()

    def fail(self, reason: str) -> None:
        """The KV cannot be used."""
        self.state = advance(RECEIVE_MOVES, self.state, ReceiveState.FAILED)
        self.failure = reason

    def release(self) -> None:
        """The pages are no longer ours. A delivered or failed reservation keeps its state."""
        if self.state in OPEN:
            self.state = advance(RECEIVE_MOVES, self.state, ReceiveState.CANCELLED)

    def _misfit_of_last(self, header: FrameHeader) -> Rejection | None:
        if self.last is not None:
            return Rejection.ALREADY_LANDED
        if (header.page_start, header.num_pages, header.num_tokens) != (0, 0, 0):
            return Rejection.PAGE_RANGE
        return None

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

    def _received(self) -> None:
        if self.state is ReceiveState.REQUESTED:
            self.state = advance(RECEIVE_MOVES, self.state, ReceiveState.RECEIVING)
        if self.last is None:
            return

        whole = self._num_pages_landed == len(self._claimed)
        if not whole and self._num_frames < self.last.num_frames and self._may_get_more:
            return

        if not whole or self._num_frames != self.last.num_frames:
            self.fail(
                f"{self.last.num_frames} frames were announced; {self._num_frames} landed with "
                f"{self._num_pages_landed} of {len(self._claimed)} pages"
            )
        elif self._digest != self.last.digest:
            self.fail(f"the digest of what landed is {self._digest:#x}, the sender announced {self.last.digest:#x}")
        else:
            self.state = advance(RECEIVE_MOVES, self.state, ReceiveState.DELIVERED)
