"""The receiver of a decode worker, for every backend: checks a frame, copies it into its pages, reports.

Checked are size, checksum and reservation. For KV that was written in place only the header arrives; the checksum of
the pages is then computed here, or by the device that holds them. Bad input from any peer ends in an event and a
counter, never in an exception.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import WireError
from protocol.frame import Check, FrameHeader, seal_sum, unpack_header, verify_checksum
from protocol.kv_layout import KvLayout
from runtime.log import Refusals, get_log
from transfer.in_place.device_pools import DeviceReader, Moving
from transfer.in_place.writers import Writers
from transfer.interfaces import Arrivals, PageMemory, Pollable
from transfer.landing.transfer import (
    CreditReturned,
    Delivered,
    FrameRejected,
    LastInDoubt,
    ReceiverEvent,
    ReceiveTransfer,
    Rejection,
)
from transfer.offers import ANSWER, OFFER, Agreed, Answer
from transfer.plan import Copy, Extents
from transfer.states import OPEN

POLL_BYTES = 16 * 1024 * 1024  # payload landed by one poll: about 2 ms of copying
POLL_FRAMES = 256  # the most frames of one poll, whatever their size
MAX_PARTS = 1024  # of one frame; a sender gathers runs that are shorter than 64 KiB


@dataclass(frozen=True)
class _Written:
    """A frame that was written on the device and is to be summed there."""

    transfer: ReceiveTransfer
    header: FrameHeader
    extents: Extents

    def goes_on(self, last: "_Written") -> bool:
        """Whether it is of the same bytes as `last`, of the layer behind it."""
        return self.extents is last.extents and self.header.layer == last.header.layer + 1


@dataclass(frozen=True)
class _Checking:
    """Frames of one transfer whose words a device is summing, of one layer each."""

    frames: Sequence[_Written]
    reading: Moving


@dataclass
class _Poll:
    """What one poll has found."""

    credit: Counter[tuple[int, int]] = field(default_factory=Counter)
    host_bytes: int = 0  # that this thread has copied or summed
    written: list[_Written] = field(default_factory=list)


class FrameReceiver:
    """The receiver of one decode worker; main thread only.

    It does not notice frames that are lost on the way: the owner of a reservation needs a deadline."""

    def __init__(
        self,
        memory: PageMemory,
        arrivals: Arrivals,
        writers: Writers | None = None,
        reader: DeviceReader | None = None,
    ) -> None:
        """Without `writers` no peer writes in place, without `reader` none on the device."""
        self._memory = memory
        self._layout = memory.layout
        self._arrivals = arrivals
        self._writers = Writers() if writers is None else writers
        self._reader = reader

        self._checking: deque[_Checking] = deque()
        self._has_strays = False  # since the last poll, a damaged frame of unknown sender arrived
        self._transfers: dict[int, ReceiveTransfer] = {}
        self._totals: Counter[str] = Counter()
        self._refusals = Refusals(get_log("transfer"), "frame refused")

    @property
    def address(self) -> str:
        """The address that peers dial: WorkerAddress.data."""
        return self._arrivals.address

    @property
    def counters(self) -> Mapping[str, float]:
        """Monotonic totals, and gauges named *_now."""
        refused = {f"rejected_{reason}": count for reason, count in self._refusals.counts.items()}
        return {**self._totals, **refused, "reservations_now": len(self._transfers)}

    def offer(self, instance: int) -> bytes:
        """The offer for the greeting of the prefill worker `instance`."""
        return OFFER.encode(self._writers.offer(instance)) if self._writers.lends else b""

    def answered(self, instance: int, answer: bytes) -> Agreed:
        """That worker accepts jobs, and this is its answer to the offer. WireError if its KV cannot come here, or not
        as the backend requires."""
        told = ANSWER.decode(answer) if answer else Answer()
        self._arrivals.meet(instance, told.export)
        written_by = self._writers.admit(instance, told.in_place, told.device_writer)
        return Agreed(written_by or self._arrivals.backend, bool(written_by))

    def lose(self, instance: int) -> None:
        """That worker is lost or starts anew. Nothing is read from it any more, and its offer is void. Idempotent."""
        self._writers.lose(instance)
        self._arrivals.lose(instance)

    def stopped(self, reservation: int, instance: int) -> None:
        """That worker reports that it writes and sends no more for the reservation. Idempotent."""
        self._writers.ended(reservation, instance)

    def may_be_written(self, reservation: int) -> bool:
        """Whether a writer may still write the reservation's pages, even after release(). Once False it stays False."""
        return self._writers.may_be_written(reservation)

    def reserve(
        self,
        reservation: int,
        attempt: int,
        sender_instance: int,
        pages: Sequence[int],
        num_tokens: int,
        sent: KvLayout | None = None,
        in_place: bool = False,
        start: int = 0,
    ) -> ReceiveTransfer:
        """Lets one sender write these pages (the caller's own, of tokens from `start` on) until release(). Ids are not
        reused.

        `sent`: the sender's layout, by default our own; their page sizes may differ. `in_place`: an admitted writer is
        told the pages, so after release() they are free only once may_be_written() is False.
        """
        assert reservation not in self._transfers, reservation

        if in_place:
            self._writers.began(reservation, sender_instance)
        self._transfers[reservation] = transfer = ReceiveTransfer(
            self._layout,
            attempt,
            sender_instance,
            pages,
            num_tokens,
            sent,
            in_place,
            in_place and self._writers.is_on_device(sender_instance),
            self._arrivals.is_ordered,
            start,
        )
        return transfer

    def release(self, reservation: int) -> None:
        """Consumed, cancelled or failed. No byte lands after this call; every later frame is rejected. Idempotent."""
        transfer = self._transfers.pop(reservation, None)
        if transfer is not None:
            transfer.release()
            self._totals[f"reservations_{transfer.state}"] += 1

    @property
    def is_checking(self) -> bool:
        """Whether poll() must be called again at once: a device reads pages and signals nothing when it is done."""
        return bool(self._checking)

    def poll(self, max_bytes: int = POLL_BYTES) -> list[ReceiverEvent]:
        """Lands what has arrived, up to about `max_bytes`. Never blocks, and never raises for what a peer sent.

        A reservation ends once, in Delivered (after its FirstFrame) or TransferFailed. If frames are lost it may never
        end: with ordered frames, only if the last frame is lost too.
        """
        events: list[ReceiverEvent] = []
        poll = _Poll()

        for _ in range(POLL_FRAMES):
            if poll.host_bytes >= max_bytes or (parts := self._arrivals.receive()) is None:
                break
            events += self._take(parts, poll)
        self._begin_checks(poll.written)

        while self._checking and self._checking[0].reading.done:
            events += self._checked(self._checking.popleft())

        if self._has_strays:
            events += [LastInDoubt(number) for number, transfer in self._transfers.items() if transfer.lacks_last]
            self._has_strays = False
        events += [CreditReturned(*whose, num_bytes) for whose, num_bytes in poll.credit.items() if num_bytes]
        return events

    def pollables(self) -> list[Pollable]:
        """What to wait for (readable) before poll() has something to land."""
        return self._arrivals.pollables()

    def close(self) -> None:
        """Releases everything and unbinds. Idempotent."""
        for reservation in list(self._transfers):
            self.release(reservation)
        self._arrivals.close()

    def _take(self, parts: Sequence[memoryview], poll: _Poll) -> Sequence[ReceiverEvent]:
        try:
            if len(parts) > MAX_PARTS:
                raise WireError(f"frame of {len(parts)} parts, expected at most {MAX_PARTS}")
            header = unpack_header(parts[0])
        except WireError as error:
            self._refusals.note(Rejection.MALFORMED, why=error.message)
            self._has_strays = True
            return [FrameRejected(Rejection.MALFORMED)]

        payload = parts[1:]
        num_bytes = sum(map(len, payload))
        transfer = self._transfers.get(header.reservation)
        is_written = self._is_written(transfer, header, payload)
        credit = header.payload_bytes if is_written else num_bytes
        poll.credit[header.sender_instance, header.reservation] += credit
        is_on_device = transfer is not None and transfer.is_on_device
        poll.host_bytes += 0 if is_on_device and is_written else credit

        damage = None
        if not is_written:
            damage = Rejection.SIZE if num_bytes != header.payload_bytes else _wrong_sum(header, payload)
        if damage is not None and (transfer is None or not transfer.owns(header)):
            self._has_strays = True
        if transfer is None:
            return self._told(header, [FrameRejected(damage or Rejection.UNKNOWN_RESERVATION)])

        taken = transfer.take(header, payload, damage)
        if not isinstance(taken, Copy):
            return self._told(header, taken)
        if is_on_device:
            poll.written.append(_Written(transfer, header, taken.targets))
            return ()
        return self._land(transfer, header, payload, taken)

    def _is_written(self, transfer: ReceiveTransfer | None, header: FrameHeader, payload: Sequence[memoryview]) -> bool:
        """Whether the frame is the header of KV that was written in place."""
        if payload or header.is_last:
            return False
        return self._writers.lends if transfer is None else transfer.is_in_place

    def _land(
        self, transfer: ReceiveTransfer, header: FrameHeader, payload: Sequence[memoryview], copy: Copy
    ) -> Sequence[ReceiverEvent]:
        """Copies the payload into place, or looks at what lies there."""
        damage = None
        pool = self._memory.window(header.layer, copy.targets.pages)
        if transfer.is_in_place:
            damage = _wrong_sum(header, copy.targets.read(pool))
        else:
            copy.run(payload[0] if len(payload) == 1 else memoryview(b"".join(payload)), pool)
        return self._landed(transfer, header, damage)

    def _begin_checks(self, written: Sequence[_Written]) -> None:
        """Has the device sum frames, those together that go on with each other."""
        left = deque(written)
        while left:
            assert self._reader is not None, "a writer on the device was admitted"
            frames = [left.popleft()]
            while left and left[0].goes_on(frames[-1]):
                frames.append(left.popleft())
            first = frames[0].header.layer
            reading = self._reader.begin(range(first, first + len(frames)), frames[0].extents)
            self._checking.append(_Checking(frames, reading))

    def _checked(self, done: _Checking) -> Sequence[ReceiverEvent]:
        """The device has summed frames. Those of a transfer that is over are ignored."""
        events: list[ReceiverEvent] = []
        for frame, total in zip(done.frames, done.reading.totals, strict=True):
            if frame.transfer.state in OPEN:
                is_right = seal_sum(frame.header, total) == frame.header
                events += self._landed(frame.transfer, frame.header, None if is_right else Rejection.CHECKSUM)
        return events

    def _landed(
        self, transfer: ReceiveTransfer, header: FrameHeader, damage: Rejection | None
    ) -> Sequence[ReceiverEvent]:
        if damage is None:
            self._totals["frames"] += 1
            self._totals["bytes"] += header.payload_bytes
        return self._told(header, transfer.landed(header, damage))

    def _told(self, header: FrameHeader, events: Sequence[ReceiverEvent]) -> Sequence[ReceiverEvent]:
        """Notes what a frame has led to."""
        for event in events:
            if isinstance(event, FrameRejected):
                self._refusals.note(event.reason, reservation=header.reservation, sender=header.sender_instance)
            elif isinstance(event, Delivered):
                self.stopped(header.reservation, header.sender_instance)
        return events


def _wrong_sum(header: FrameHeader, payload: Iterable[memoryview]) -> Rejection | None:
    if header.check != Check.BYTES:
        return Rejection.CHECK_KIND
    try:
        verify_checksum(header, payload)
    except WireError:
        return Rejection.CHECKSUM
    return None
