"""What prefill and decode see of KV movement: two protocols, their events, and the constants that both ends share.

Logical pages: a reservation holds `num_tokens` prompt tokens in ceil(num_tokens / page_size) pages, numbered from 0 in
order; each side maps them to page numbers of its own. Frames count in the sender's pages; the receiver's may be of
another size. Each of the two objects belongs to one thread, its worker's main thread. What it does not know: how bytes
travel (backends/), who owns a page, or any deadline: a frame that is lost on the way is noticed by nobody here, so
whoever waits for a reservation gives it a deadline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zmq

from protocol.frame import FrameHeader, LastMessage
from protocol.kv_layout import KvLayout, touched
from protocol.messages_gateway import Stamp, WorkerAddress
from protocol.messages_handoff import PoolOffer

WINDOW_BYTES = 32 * 1024 * 1024  # payload a sender may have in flight to one peer; a larger frame goes alone
FRAME_BYTES = 2 * 1024 * 1024  # payload of one merged frame; a page that is larger is a frame of its own
IN_PLACE_FRAME_BYTES = 4 * 1024 * 1024  # of one frame that is written in place, on one host
DEVICE_FRAME_BYTES = 128 * 1024 * 1024  # of one frame between devices, where what it costs to begin one counts
DEVICE_WINDOW_BYTES = 512 * 1024 * 1024  # in flight from device to device: it takes no memory, but an end waits for it
POLL_BYTES = 16 * 1024 * 1024  # payload landed by one poll, some 2 ms of copying
POLL_FRAMES = 256  # and never more frames than this, whatever their size

Pollable = zmq.Socket[Any] | int


class PageMemory(Protocol):
    """KV pages in host memory, by number."""

    @property
    def layout(self) -> KvLayout:
        """The shape of it."""
        ...

    def page_bytes_view(self, layer: int, page_start: int, num_pages: int) -> memoryview:
        """Writable bytes of pages [page_start, page_start + num_pages) of one layer, contiguous, without a copy."""
        ...

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """Writable bytes of one layer from page 0 to the last of `pages`, without a copy. No other pages may be
        touched."""
        ...


def bytes_at(memory: PageMemory, layer: int, start: int, num_bytes: int) -> memoryview:
    """Writable bytes [start, start + num_bytes) of one layer, counted from page 0, without a copy."""
    page_bytes = memory.layout.page_bytes
    pages = touched(start, start + num_bytes, page_bytes)
    offset = start - pages.start * page_bytes
    return memory.page_bytes_view(layer, pages.start, pages.stop - pages.start)[offset : offset + num_bytes]


@dataclass(frozen=True)
class Target:
    """One transfer: the decode worker (`peer.data` is its endpoint), the reservation there, and the attempt.

    `pages` are decode's own, in prompt order, where KV is to be written in place; none: it goes as frames.
    """

    peer: WorkerAddress
    reservation: int
    attempt: int
    pages: tuple[int, ...] = field(default=(), compare=False)


class Rejection(StrEnum):
    """Why a frame was not landed. One of FATAL, from the right sender, means that the KV will never be whole."""

    MALFORMED = "malformed"
    UNKNOWN_RESERVATION = "unknown_reservation"
    WRONG_SENDER = "wrong_sender"
    WRONG_ATTEMPT = "wrong_attempt"
    NOT_RECEIVING = "not_receiving"  # delivered or failed already
    ALREADY_LANDED = "already_landed"
    PARTLY_LANDED = "partly_landed"
    LAYER_RANGE = "layer_range"
    PAGE_RANGE = "page_range"
    NUM_TOKENS = "num_tokens"
    SIZE = "size"
    CHECK_KIND = "check_kind"  # a checksum of bytes where a sum of the device is due, or the other way round
    CHECKSUM = "checksum"


FATAL = frozenset(
    {
        Rejection.MALFORMED,
        Rejection.PARTLY_LANDED,
        Rejection.LAYER_RANGE,
        Rejection.PAGE_RANGE,
        Rejection.NUM_TOKENS,
        Rejection.SIZE,
        Rejection.CHECK_KIND,
        Rejection.CHECKSUM,
    }
)


@dataclass(frozen=True)
class FirstFrame:
    """The first frame of a reservation has landed: REQUESTED becomes RECEIVING."""

    reservation: int


@dataclass(frozen=True)
class Delivered:
    """Every frame of the announced plan is in place and the digest agrees. No frame is accepted from here on.

    `on_device`: KV is where the device computes; else it is in host memory, and reaches the device from there.
    """

    reservation: int
    last: LastMessage
    on_device: bool = False


@dataclass(frozen=True)
class TransferFailed:
    """The KV of this reservation will never be right. No frame is accepted from here on; release() is still due."""

    reservation: int
    reason: str


@dataclass(frozen=True)
class CreditReturned:
    """Payload bytes that have left the receiver's queue, landed or not, since the last poll: send it a DataCredit.

    The instance is what frames claim; one that is not a connected prefill worker is to be ignored.
    """

    sender_instance: int
    reservation: int
    num_bytes: int


@dataclass(frozen=True)
class FrameRejected:
    """A frame was not landed. `header` is absent when not even that could be read."""

    reason: Rejection
    header: FrameHeader | None


@dataclass(frozen=True)
class LastInDoubt:
    """Every KV frame of this reservation has come; the last frame has not, but a damaged one of which nobody can tell
    whose it was. The last is due in a moment, or was that."""

    reservation: int


ReceiverEvent = FirstFrame | Delivered | TransferFailed | LastInDoubt | CreditReturned | FrameRejected


class KvSender(Protocol):
    """One per prefill worker. Calls about a transfer that was cancelled, delivered or never opened do nothing."""

    @property
    def export(self) -> bytes:
        """What decode must have to read our pages, where it does; for HelloAccepted."""
        ...

    def attach(self, instance: int, layout: KvLayout, pool: PoolOffer | None) -> bool:
        """The decode worker `instance` has greeted, anew perhaps: what was known of it is dropped as by drop_peer().

        Whether its pages, of `layout`, can be written in place. WireError if they cannot and nothing else will do.
        """
        ...

    def device_writer(self, instance: int) -> int:
        """The process that writes into the device memory of that worker; 0 where nobody does, and pages are read from
        host memory."""
        ...

    def open(self, target: Target, source_pages: Sequence[int], num_tokens: int) -> None:
        """Announces a transfer and connects to its peer if need be.

        `source_pages` are the caller's pages in prompt order. WireError if the peer's endpoint is no address, if this
        very target is already open, or if its pages are none that may be written.
        """
        ...

    def layer_ready(self, target: Target, layer: int, num_tokens: int) -> None:
        """K and V of tokens [0, num_tokens) of `layer` are final, and where they are read: see device_writer().

        Whole pages leave at once as credit allows; the partial last page only when `num_tokens` is the total.
        """
        ...

    def finish(self, target: Target, first_tokens: tuple[int, ...], stamps: tuple[Stamp, ...] = ()) -> None:
        """Every layer is ready in full; the last frame follows the KV frames (also if there was none)."""
        ...

    def cancel(self, target: Target) -> None:
        """Nothing more is sent or written from here on; waits for what a device has begun. Idempotent."""
        ...

    def delivered(self, target: Target) -> None:
        """KvDelivered has arrived."""
        ...

    def add_credit(self, instance: int, reservation: int, num_bytes: int) -> None:
        """DataCredit has arrived from the decode worker `instance`; sends what waited for it."""
        ...

    def drop_peer(self, instance: int) -> None:
        """The decode worker `instance` is lost: cancels all its transfers, closes its connection. Idempotent."""
        ...

    def broken(self) -> list[Target]:
        """Transfers of which frames may have been lost with a connection since the last call: nobody else notices."""
        ...

    def pump(self) -> None:
        """Sends what credit allows; never blocks."""
        ...

    @property
    def is_moving(self) -> bool:
        """Whether pump() is due again at once: a device copies, and wakes nobody when it is done."""
        ...

    def is_reading(self, target: Target) -> bool:
        """Whether the transport may still read the transfer's source pages, also after its end. Unknown: False."""
        ...

    def pollables(self) -> list[Pollable]:
        """What to wait on (readable) for pump() to have something new to do."""
        ...

    @property
    def counters(self) -> Mapping[str, float]:
        """Monotonic totals, and gauges named *_now."""
        ...

    def close(self) -> None:
        """Ends every transfer and connection. Idempotent."""
        ...


class KvReceiver(Protocol):
    """One per decode worker."""

    def offer(self, instance: int) -> PoolOffer | None:
        """What the prefill worker `instance` is offered in a greeting; None where nobody may write in place."""
        ...

    def admit_writer(self, instance: int, in_place: bool, device_writer: int = 0) -> int:
        """The seat of that worker, which says that it can or not, if it may be told pages; 0 if not, or WireError if it
        must. `device_writer`: see KvSender."""
        ...

    def meet(self, instance: int, export: bytes) -> None:
        """That worker takes jobs, and exports this (KvSender.export). WireError if its KV could not be had."""
        ...

    def lose(self, instance: int) -> None:
        """That worker is lost, or begins anew: nothing is read from it any more, and what it was offered
        is void. Idempotent."""
        ...

    def backend(self, instance: int, in_place: bool) -> str:
        """The name of what brings KV from that worker, which may write it itself or not."""
        ...

    def stopped(self, reservation: int, instance: int) -> None:
        """That worker says that it writes and sends no more for the reservation. Idempotent."""
        ...

    def may_be_written(self, reservation: int) -> bool:
        """Whether a writer may still write the reservation's pages, also after release(). Once false it stays false."""
        ...

    @property
    def address(self) -> str:
        """What peers dial: WorkerAddress.data."""
        ...

    def reserve(
        self,
        reservation: int,
        attempt: int,
        sender_instance: int,
        pages: Sequence[int],
        num_tokens: int,
        sent: KvLayout | None = None,
        in_place: bool = False,
    ) -> None:
        """Lets one sender write these pages (the caller's own, in prompt order) until release(). Ids are not reused.

        `sent` is the sender's layout, by default our own: they may differ in page size. `in_place`: an admitted writer
        is told the pages, so after release() they are not free until may_be_written() says no.
        """
        ...

    def release(self, reservation: int) -> None:
        """Consumed, cancelled or failed: no byte lands from here on, every later frame is rejected. Idempotent."""
        ...

    @property
    def is_checking(self) -> bool:
        """Whether poll() is due again at once: a device reads what was written, and wakes nobody when it is done."""
        ...

    def poll(self, max_bytes: int = POLL_BYTES) -> list[ReceiverEvent]:
        """Lands what has arrived, up to about `max_bytes`. Never blocks, never raises for what a peer sent.

        A reservation ends in Delivered (after its FirstFrame) or TransferFailed, once. If frames are lost it may end in
        neither: where they keep their order, only if the last is among them.
        """
        ...

    def pollables(self) -> list[Pollable]:
        """What to wait on (readable) for poll() to have something to land."""
        ...

    @property
    def counters(self) -> Mapping[str, float]:
        """Monotonic totals, and gauges named *_now."""
        ...

    def close(self) -> None:
        """Releases everything and unbinds. Idempotent."""
        ...
