"""The sending side without socket and memory: one transfer, one peer's credit, one peer's queue.

Frames wait for their turn, those of older transfers first. The last frame of a transfer is queued after all its KV
frames, so its digest is complete when its turn comes. transfer/states.py has the states of a transfer.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.frame import LAST_LAYER, LAST_MESSAGE, FrameHeader, LastMessage, extend_digest
from protocol.kv_layout import KvLayout, full_pages
from protocol.logprobs import Logprobs
from protocol.messages_gateway import WorkerAddress
from protocol.worker_facts import Stamp
from transfer.in_place.device_pools import Moving
from transfer.plan import FRAME_BYTES, Copy, Extents, KvFrame, Shard, final_pages, frames_of, moves_of, whole_pages
from transfer.states import TRANSITIONS, TransferState, advance

WINDOW_BYTES = 32 * 1024 * 1024  # payload in flight to one peer; a larger frame goes alone
DEVICE_WINDOW_BYTES = 512 * 1024 * 1024  # the same between devices: takes no memory, but a transfer's end waits for it


@dataclass(frozen=True)
class Destination:
    """One transfer: the decode worker (`peer.data` is its endpoint), the reservation there, and the attempt.

    `pages`: decode's pages from the token `start` on, if KV is written in place; None if it travels in frames.
    """

    peer: WorkerAddress
    reservation: int
    attempt: int
    pages: tuple[int, ...] | None = field(default=None, compare=False)
    start: int = field(default=0, compare=False)


@dataclass(frozen=True)
class LastFrame:
    """The place of the last frame in a queue. Its payload is made when its turn comes."""

    first_tokens: tuple[int, ...]
    stamps: tuple[Stamp, ...]
    num_cached: int
    hidden: bytes
    logprobs: tuple[Logprobs, ...]


Frame = KvFrame | LastFrame


class SendTransfer:
    """What is ready and what has been sent of one transfer."""

    def __init__(
        self,
        destination: Destination,
        layout: KvLayout,
        source_pages: Sequence[int],
        num_tokens: int,
        target_layout: KvLayout | None = None,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        """`source_pages`: the whole prompt's. `target_layout`: the layout of decode's pages, if they are written in
        place."""
        assert len(source_pages) == layout.num_pages(num_tokens), (len(source_pages), num_tokens)

        self.destination = destination
        self.source_pages = tuple(source_pages)
        self.state = TransferState.REQUESTED
        self.num_sent = 0  # frames of any kind

        self.num_layers = layout.num_layers
        self._layout = layout
        self._target_layout = target_layout
        self._frame_bytes = frame_bytes
        self._copies: dict[tuple[int, int, int], Copy] = {}  # by (layer group, page_start, num_pages)
        self._runs: dict[tuple[int, int, int], Extents] = {}  # by the same
        self._num_tokens = num_tokens
        # Pages of each layer, up to which they have been returned as frames or lie before the start.
        self._ready_pages = [full_pages(destination.start, layout.page_size)] * layout.num_layers
        self._digest = 0

    def layer_ready(self, layer: int, num_final: int) -> Iterator[KvFrame]:
        """The frames that become ready when tokens [0, num_final) of `layer` are final. Each is returned once."""
        assert self.state is TransferState.REQUESTED, "the last frame is queued"
        assert 0 <= num_final <= self._num_tokens, (num_final, self._num_tokens)
        start = self._ready_pages[layer]
        end = max(start, final_pages(self._layout, num_final, self._num_tokens))
        self._ready_pages[layer] = end
        return frames_of(self._layout, layer, start, end, self._num_tokens, self._frame_bytes)

    def finish(
        self,
        first_tokens: tuple[int, ...],
        stamps: tuple[Stamp, ...],
        num_cached: int,
        hidden: bytes = b"",
        logprobs: tuple[Logprobs, ...] = (),
    ) -> LastFrame:
        """The last frame. Every layer must be ready in full."""
        total = len(self.source_pages)
        assert all(ready == total for ready in self._ready_pages), (self._ready_pages, total)
        self.move(TransferState.SENDING)
        return LastFrame(first_tokens, stamps, num_cached, hidden, logprobs)

    def move(self, state: TransferState) -> None:
        """Advances the state machine."""
        self.state = advance(TRANSITIONS, self.state, state)

    def header(self, frame: Frame, sender_instance: int) -> FrameHeader:
        """The frame's header, not yet sealed. `frame` must be the next to be sent."""
        at = KvFrame(LAST_LAYER, 0, 0, 0) if isinstance(frame, LastFrame) else frame
        return FrameHeader(
            layer=at.layer,
            sender_instance=sender_instance,
            reservation=self.destination.reservation,
            attempt=self.destination.attempt,
            sequence=self.num_sent,
            page_start=at.page_start,
            num_pages=at.num_pages,
            num_tokens=at.num_tokens,
            payload_bytes=self.payload_bytes(frame),
        )

    def payload_bytes(self, frame: Frame) -> int:
        """Size of the payload. `frame` must be the next to be sent."""
        if isinstance(frame, LastFrame):
            return len(self.last_payload(frame))
        layer = self._layout.layer(frame.layer)
        if self._target_layout is not None:
            return frame.num_tokens * 2 * layer.token_bytes
        return frame.num_pages * layer.page_bytes

    @property
    def is_in_place(self) -> bool:
        """Whether KV is written into the destination's pages."""
        return self._target_layout is not None

    def copy(self, frame: KvFrame) -> Copy:
        """The copy from source pages to target pages, for a transfer in place. Only valid slots are moved."""
        assert self._target_layout is not None and self.destination.pages is not None
        key = self._key(frame)
        if key not in self._copies:
            ours, theirs = self._layout.layer(frame.layer), self._target_layout.layer(frame.layer)
            first = frame.page_start * ours.page_size
            heads, tokens = range(ours.num_kv_heads), range(first, first + frame.num_tokens)
            targets = Shard(theirs, self.destination.pages, first_token=self.destination.start)
            moves = moves_of(Shard(ours, self.source_pages), targets, heads, tokens)
            self._copies[key] = Copy(moves, ours.page_bytes, theirs.page_bytes)
        return self._copies[key]

    def runs(self, frame: KvFrame) -> Extents:
        """The byte ranges of the source pages that make up a frame's payload."""
        key = self._key(frame)
        if key not in self._runs:
            numbers = self.source_pages[frame.page_start : frame.page_start + frame.num_pages]
            self._runs[key] = whole_pages(numbers, self._layout.layer(frame.layer).page_bytes)
        return self._runs[key]

    def goes_on(self, last: KvFrame, frame: KvFrame) -> bool:
        """Whether a frame moves the same bytes as `last`, of the layer behind it."""
        return frame.layer == last.layer + 1 and self._key(frame) == self._key(last)

    def _key(self, frame: KvFrame) -> tuple[int, int, int]:
        """Frames with the same key move the same bytes of their layers."""
        return self._layout.place(frame.layer)[0], frame.page_start, frame.num_pages

    def last_payload(self, frame: LastFrame) -> bytes:
        """Payload of the last frame, once every KV frame has been sent."""
        told = LastMessage(
            frame.first_tokens,
            self.num_sent,
            self._digest,
            frame.stamps,
            frame.num_cached,
            frame.hidden,
            frame.logprobs,
        )
        return LAST_MESSAGE.encode(told)

    def sent(self, header: FrameHeader) -> None:
        """The frame with this sealed header has left."""
        self.num_sent += 1
        if not header.is_last:
            self._digest = extend_digest(self._digest, header)


class CreditWindow:
    """Payload bytes in flight to one peer: frames that have left, in order, until their credit returns.

    Frames may be lost, and so may credit. Credit for a frame also writes off all frames that left before it. If no
    transfer that continues has frames in flight, the next frame may leave whatever its size, so that lost bytes never
    block a transfer for ever. A write-off that is too early or too late only moves the bound.
    """

    def __init__(self, window: int = WINDOW_BYTES) -> None:
        self.window = window
        self.in_flight = 0
        self._frames: deque[tuple[int, int]] = deque()  # (reservation, bytes)
        self._num_frames: Counter[int] = Counter()  # of those in flight, by reservation
        self._ended: set[int] = set()  # reservations of transfers that have ended with frames in flight

    def fits(self, num_bytes: int) -> bool:
        """Whether a frame of `num_bytes` may leave now."""
        return not self.going_on or self.in_flight + num_bytes <= self.window

    @property
    def going_on(self) -> int:
        """How many transfers that continue have frames in flight."""
        return len(self._num_frames) - len(self._ended)

    def take(self, reservation: int, num_bytes: int) -> None:
        """A frame has left."""
        assert self.fits(num_bytes), (self.in_flight, num_bytes)
        self._frames.append((reservation, num_bytes))
        self._num_frames[reservation] += 1
        self.in_flight += num_bytes

    def give_back(self, reservation: int, num_bytes: int) -> None:
        """The peer has returned credit. Credit for more than is in flight is ignored."""
        while num_bytes > 0 and self._num_frames[reservation]:
            oldest, size = self._forget(0)
            if oldest == reservation:
                num_bytes -= size

    def withdraw(self, reservation: int, num_frames: int) -> None:
        """The last `num_frames` frames of a transfer never leave, so no credit comes for those not yet written off."""
        numbers = [number for number, (owner, _) in enumerate(self._frames) if owner == reservation]
        for number in reversed(numbers[max(0, len(numbers) - num_frames) :]):
            self._forget(number)

    def _forget(self, number: int) -> tuple[int, int]:
        """Takes a frame out of those in flight. Returns (reservation, bytes)."""
        reservation, size = self._frames[number]
        del self._frames[number]
        self.in_flight -= size
        self._num_frames[reservation] -= 1
        if not self._num_frames[reservation]:
            del self._num_frames[reservation]
            self._ended.discard(reservation)
        return reservation, size

    def end(self, reservation: int) -> None:
        """The transfer has ended. Its bytes in flight block no other transfer."""
        if reservation in self._num_frames:
            self._ended.add(reservation)


@dataclass(frozen=True, eq=False)
class MovingFrame:
    """A frame that a device is writing at the peer. Its header leaves once the KV is there."""

    transfer: SendTransfer
    frame: KvFrame
    moving: Moving
    layer_moved: int  # its place among the layers that were given to the device in one call


class Queued(NamedTuple):
    """A frame that waits."""

    transfer: SendTransfer
    frame: Frame


class PeerQueue:
    """The frames that wait for one decode worker, and those that a device is moving there.

    All frames of a transfer leave, in the order in which they became ready, before those of a later transfer. So on a
    slow link a computed prompt never waits for a younger one. The device completes frames in the order in which they
    began.
    """

    def __init__(self, window: int = WINDOW_BYTES) -> None:
        self.credit = CreditWindow(window)
        self._waiting: dict[SendTransfer, deque[Frame]] = {}  # in the order in which the transfers began
        self._moving: deque[MovingFrame] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def push(self, transfer: SendTransfer, frame: Frame) -> None:
        """Queues a frame."""
        self._waiting.setdefault(transfer, deque()).append(frame)

    def has_sent(self, transfer: SendTransfer) -> bool:
        """Whether the transfer's last frame has left."""
        return transfer.state is TransferState.SENDING and not self._waiting.get(transfer)

    def head(self) -> Queued | None:
        """The next frame. It stays queued until pop()."""
        return next((Queued(transfer, frames[0]) for transfer, frames in self._waiting.items() if frames), None)

    def pop(self, num_bytes: int) -> None:
        """Removes the head, which leaves: it takes credit for `num_bytes`."""
        transfer, frames = next((transfer, frames) for transfer, frames in self._waiting.items() if frames)
        frames.popleft()
        self.credit.take(transfer.destination.reservation, num_bytes)

    def pop_together(self) -> list[KvFrame]:
        """Removes the head, a KvFrame, and the frames that go on with it, as credit allows."""
        popped: list[KvFrame] = []
        transfer = next(transfer for transfer, frames in self._waiting.items() if frames)
        waiting = self._waiting[transfer]
        while waiting and isinstance(frame := waiting[0], KvFrame):
            num_bytes = transfer.payload_bytes(frame)
            if popped and not (transfer.goes_on(popped[-1], frame) and self.credit.fits(num_bytes)):
                break
            self.pop(num_bytes)
            popped.append(frame)
        return popped

    @property
    def is_moving(self) -> bool:
        """Whether a device was given frames whose headers have not left."""
        return bool(self._moving)

    def begin(self, transfer: SendTransfer, frames: Sequence[KvFrame], moving: Moving) -> None:
        """Notes that frames were given to the device in one call."""
        self._moving.extend(MovingFrame(transfer, frame, moving, at) for at, frame in enumerate(frames))

    def moved(self) -> MovingFrame | None:
        """The oldest frame at the device, if the device is done with it. It stays until pop_moved()."""
        return self._moving[0] if self._moving and self._moving[0].moving.done else None

    def pop_moved(self) -> None:
        """The header of that frame has left."""
        self._moving.popleft()

    def drop(self, transfer: SendTransfer) -> None:
        """Removes every frame of a transfer that has ended. Waits for the device: its work cannot be called back, and
        the receiver of a stop gives the pages to other requests. The headers of what was moved never leave."""
        self._waiting.pop(transfer, None)
        ended = [moving for moving in self._moving if moving.transfer is transfer]
        if ended:
            ended[-1].moving.wait()
            self.credit.withdraw(transfer.destination.reservation, len(ended))
        self._moving = deque(moving for moving in self._moving if moving.transfer is not transfer)
