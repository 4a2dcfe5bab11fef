"""KV over NIXL, for clusters with RDMA: decode reads frames from the prefill worker's pages. Small ones go by ZMQ.

    prefill  exports its pages (HelloAccepted)  --notice: header, where the payload lies (ZMQ)-->  decode
    prefill  <--its frame has been read (a NIXL note)--  decode reads into its own ring, then lands it like any frame

So only decode writes decode's pages, after checking size, checksum and reservation. If prefill reuses a page too early,
because a read was given up, the checksum is wrong and the frame is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from protocol.errors import WireError
from runtime.clock import Clock, MonotonicClock
from runtime.log import Refusals, get_log
from runtime.ticker import Ticker
from transfer.backends.nixl.agent import Agent, Region, address_of
from transfer.backends.nixl.source import Source, is_notice, note_of, pack_notice, unpack_notice
from transfer.interfaces import Arrivals, Part, Pollable, Reading, SharedPages, Wire
from transfer.landing.frame_receiver import FrameReceiver
from transfer.plan import FRAME_BYTES
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES

SCHEME = "nixl+"
TICK_S = 0.0005  # while frames are read or wait to be read: reads have no descriptor to poll
PIN_S = 30.0  # how long a page is kept for a reader that never reports its end
GATHER_BELOW = 4 * 1024  # bytes: frames whose runs are shorter on average go by ZMQ


def nixl_sender(
    memory: SharedPages, instance: int, wire: Wire, window: int = WINDOW_BYTES, gather_below: int = GATHER_BELOW
) -> FrameSender:
    """A FrameSender whose notices travel over `wire`."""
    fetched = NixlWire(wire, memory, MonotonicClock())
    return FrameSender(memory, instance, fetched, window, gather_below=gather_below, export=fetched.export)


def nixl_receiver(memory: SharedPages, arrivals: Arrivals) -> FrameReceiver:
    """A FrameReceiver that gets notices from `arrivals`."""
    return FrameReceiver(memory, NixlArrivals(arrivals, max(FRAME_BYTES, memory.layout.largest_page_bytes)))


@dataclass(frozen=True, eq=False)
class Pin:
    """A frame that decode may be reading."""

    wire: "NixlWire"
    instance: int
    note: bytes
    late: float  # seconds of the wire's clock

    @property
    def done(self) -> bool:
        """See transfer.interfaces.Reading."""
        return self.wire.is_through(self)


class NixlWire:
    """Prefill's side. See interfaces.Wire. `wire` carries notices, and frames whose payload is not in page memory."""

    def __init__(self, wire: Wire, memory: SharedPages, clock: Clock) -> None:
        """ConfigError if NIXL cannot be used."""
        self._regions = regions_of(memory)
        self._agent = Agent(self._regions)
        self._wire = wire
        self._clock = clock
        self._numbers = count(1)
        self._pins: dict[bytes, Pin] = {}  # by the note that decode sends at the end of its read
        self.export = self._agent.export

    def connect(self, instance: int, endpoint: str) -> None:
        """See Wire."""
        if not endpoint.startswith(SCHEME):
            raise WireError(f"data address {endpoint!r}, expected one that begins with {SCHEME}")
        self._wire.connect(instance, endpoint.removeprefix(SCHEME))

    def send(self, instance: int, parts: Sequence[Part]) -> Reading | None:
        """See Wire."""
        header, *payload = parts
        pieces = [Region(address_of(part), len(part)) for part in payload if isinstance(part, memoryview)]
        if not pieces or not all(any(region.contains(piece) for region in self._regions) for piece in pieces):
            return self._wire.send(instance, parts)

        number = next(self._numbers)
        if self._wire.send(instance, [pack_notice(number, pieces), header]) is None:
            return None
        pin = Pin(self, instance, note_of(number), self._clock.now() + PIN_S)
        self._pins[pin.note] = pin
        return pin

    def is_through(self, pin: Pin) -> bool:
        """Whether decode has reported the end of its read, is lost, or has had its time. Only the first proves that the
        read has ended. A later read gets another checksum than the header's, and its frame is refused."""
        if pin.note in self._pins:
            for note in self._agent.notes():
                self._pins.pop(note, None)
            if pin.late <= self._clock.now():
                self._pins.pop(pin.note, None)
        return pin.note not in self._pins

    def broken(self) -> Sequence[int]:
        """See Wire."""
        return self._wire.broken()

    def disconnect(self, instance: int) -> None:
        """See Wire."""
        for pin in [pin for pin in self._pins.values() if pin.instance == instance]:
            del self._pins[pin.note]
        self._wire.disconnect(instance)

    def close(self) -> None:
        """See Wire."""
        self._pins.clear()
        self._wire.close()
        self._agent.close()


class NixlArrivals:
    """Decode's side. See interfaces.Arrivals. `arrivals` brings notices and small frames."""

    backend = "nixl"
    is_ordered = False  # a frame that carries its payload overtakes one that is being read

    def __init__(self, arrivals: Arrivals, max_frame_bytes: int) -> None:
        """ConfigError if NIXL cannot be used."""
        self._agent = Agent()
        self._arrivals = arrivals
        self._max_frame_bytes = max_frame_bytes
        self._sources: dict[int, Source] = {}  # by prefill instance; the last one served is last
        self._left: list[Source] = []  # lost workers from which something is still being read
        self._ticker = Ticker(TICK_S)
        self._refusals = Refusals(get_log("transfer"), "notice refused")
        self.address = SCHEME + arrivals.address

    def meet(self, instance: int, export: bytes) -> None:
        """See Arrivals."""
        known = self._sources.get(instance)
        if known is not None and known.export == export:
            return
        if not export:
            raise WireError("transfer_backend is nixl, but prefill offers no memory to read")
        self.lose(instance)
        self._sources[instance] = Source(self._agent, instance, export, self._max_frame_bytes)

    def lose(self, instance: int) -> None:
        """See Arrivals."""
        if (source := self._sources.pop(instance, None)) is not None:
            self._left.append(source)
            self._clear_up()

    def receive(self) -> Sequence[memoryview] | None:
        """See Arrivals."""
        self._ticker.clear()
        while (parts := self._arrivals.receive()) is not None:
            if not is_notice(parts) or not self._noticed(parts):
                return parts  # unchanged: an invalid notice is refused as a frame
        frame = self._read()
        self._clear_up()
        self._ticker.turn(bool(self._left) or any(source.is_busy for source in self._sources.values()))
        return frame

    def pollables(self) -> list[Pollable]:
        """See Arrivals."""
        return [*self._arrivals.pollables(), self._ticker.fd]

    def close(self) -> None:
        """See Arrivals."""
        if self._ticker.fd < 0:
            return
        self._arrivals.close()
        self._ticker.close()
        for source in (*self._sources.values(), *self._left):
            source.abandon()
        self._agent.close()
        self._sources.clear()
        self._left.clear()

    def _noticed(self, parts: Sequence[memoryview]) -> bool:
        try:
            notice = unpack_notice(parts, self._max_frame_bytes)
        except WireError as error:
            self._refusals.note("notice", why=error.message)
            return False
        source = self._sources.get(notice.header.sender_instance)
        return source is not None and source.announce(notice)

    def _read(self) -> list[memoryview] | None:
        for instance, source in list(self._sources.items()):
            if (frame := source.next_frame()) is not None:
                self._sources[instance] = self._sources.pop(instance)
                return frame
        return None

    def _clear_up(self) -> None:
        self._left = [source for source in self._left if not source.close()]


def regions_of(memory: SharedPages) -> list[Region]:
    """All pages, in as few regions as possible."""
    regions: list[Region] = []
    for layer in range(memory.layout.num_layers):
        view = memory.page_bytes_view(layer, 0, memory.num_pages)
        address = address_of(view)
        if regions and regions[-1].address + regions[-1].num_bytes == address:
            regions[-1] = Region(regions[-1].address, regions[-1].num_bytes + len(view))
        else:
            regions.append(Region(address, len(view)))
    return regions
