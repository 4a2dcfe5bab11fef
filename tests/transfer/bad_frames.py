"""A receiver with two reservations, a victim's and a neighbour's, whose every frame, byte and credit is counted."""

from collections import Counter
from dataclasses import dataclass, replace

from protocol.frame import LAST_LAYER, LAST_MESSAGE, FrameHeader, LastMessage, pack_header, seal
from protocol.kv_layout import KvLayout, LayerGroup
from tests.transfer.memory import HostMemory, Queue, expected_pool
from transfer.landing.frame_receiver import FrameReceiver
from transfer.landing.transfer import Delivered, FrameRejected, ReceiverEvent, Rejection, TransferFailed

LAYOUT = KvLayout((LayerGroup(2, 2, 4), LayerGroup(1, 1, 4)), page_size=4, dtype="float32")
Parts = list[bytes]
NUM_PAGES = 12
NUM_TOKENS = 6


@dataclass(frozen=True)
class Honest:
    """A sender that tells the truth: its reservation and the frames for it."""

    sender: int
    reservation: int
    attempt: int
    pages: tuple[int, int]
    seed: int
    layout: KvLayout = LAYOUT

    @property
    def source(self) -> HostMemory:
        return HostMemory(self.layout, 3, self.seed)

    def frames(self) -> list[tuple[FrameHeader, bytes]]:
        source = self.source
        blank = FrameHeader(0, self.sender, self.reservation, self.attempt, 0, 0, 2, NUM_TOKENS, 0)
        made = []
        for layer in range(self.layout.num_layers):
            payload = bytes(source.page_bytes_view(layer, 1, 2))
            made.append((seal(blank._replace(layer=layer, sequence=layer), payload), payload))
        digest = sum(header.checksum for header, _ in made) % 2**64
        payload = LAST_MESSAGE.encode(LastMessage((9,), self.layout.num_layers, digest))
        last = blank._replace(layer=LAST_LAYER, sequence=self.layout.num_layers, num_pages=0, num_tokens=0)
        return [*made, (seal(last, payload), payload)]


VICTIM = Honest(sender=77, reservation=4, attempt=1, pages=(5, 2), seed=1)
NEIGHBOUR = Honest(sender=78, reservation=2**40, attempt=0, pages=(9, 1), seed=2)


class Bench:
    """A receiver with a victim's and a neighbour's reservation, whose every frame is accounted for."""

    def __init__(self) -> None:
        self.pool = HostMemory(LAYOUT, NUM_PAGES, seed=3)
        self.before = bytes(self.pool.pool)
        self.queue = Queue()
        self.receiver = FrameReceiver(self.pool, self.queue)
        self.events: list[ReceiverEvent] = []
        self.num_given = 0
        for number in (VICTIM, NEIGHBOUR):
            self.receiver.reserve(number.reservation, number.attempt, number.sender, number.pages, NUM_TOKENS)

    def give(self, *frames: Parts) -> None:
        self.num_given += len(frames)
        self.queue.frames.extend(frames)
        while self.queue.frames:
            self.events += self.receiver.poll()

    def give_honest(self, honest: Honest) -> None:
        self.give(*([pack_header(header), payload] for header, payload in honest.frames()))

    def rejections(self) -> Counter[Rejection]:
        return Counter(event.reason for event in self.events if isinstance(event, FrameRejected))

    def is_delivered(self, honest: Honest) -> bool:
        return honest.reservation in [event.reservation for event in self.events if isinstance(event, Delivered)]

    def has_failed(self, honest: Honest) -> bool:
        return honest.reservation in [event.reservation for event in self.events if isinstance(event, TransferFailed)]

    def check(self) -> None:
        """The counters are the events, credit is what came, and no byte changed but where a frame could land."""
        counted = {name: count for name, count in self.receiver.counters.items() if name.startswith("rejected_")}
        assert counted == {f"rejected_{reason}": count for reason, count in self.rejections().items()}
        ended = Counter(event.reservation for event in self.events if isinstance(event, Delivered | TransferFailed))
        assert all(ended[honest.reservation] <= 1 for honest in (VICTIM, NEIGHBOUR))
        want = self.before
        for honest in (VICTIM, NEIGHBOUR):
            if self.is_delivered(honest):
                want = expected_pool(want, self.pool, honest.pages, honest.source, (1, 2), NUM_TOKENS)
        open_pages = {page for h in (VICTIM, NEIGHBOUR) if not self.is_delivered(h) for page in h.pages}
        for layer in range(LAYOUT.num_layers):
            for page in set(range(NUM_PAGES)) - open_pages:
                span = LAYOUT.span(NUM_PAGES, layer, page, 1)
                assert self.pool.pool[span] == want[span], (layer, page)

    def check_aftermath(self) -> None:
        """Both are released, and their pages serve others: late copies of every frame land nowhere."""
        for honest in (VICTIM, NEIGHBOUR):
            self.receiver.release(honest.reservation)
        assert self.receiver.counters["reservations_now"] == 0
        again = replace(VICTIM, reservation=99, attempt=0, sender=80, seed=7)
        self.receiver.reserve(again.reservation, again.attempt, again.sender, again.pages, NUM_TOKENS)
        before = bytes(self.pool.pool)
        for honest in (VICTIM, NEIGHBOUR):
            self.give_honest(honest)
        assert bytes(self.pool.pool) == before
        self.give_honest(again)
        assert self.is_delivered(again)
        assert self.pool.pool == expected_pool(before, self.pool, again.pages, again.source, (1, 2), NUM_TOKENS)
