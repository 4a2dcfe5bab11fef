"""A prefill worker, and its link to decode workers, driven by hand: no socket, no thread, launches on command."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from model.paged_kv import PagedKv
from prefill.decode_link import DecodeLink
from prefill.worker import PrefillWorker
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Assign, RankEndpoint, SamplingParams, WorkerAddress
from protocol.messages_handoff import TO_PREFILL, Hello, PrefillJob, ToPrefill
from runtime.session import Envelope, Session
from tests.doubles.clock import VirtualClock
from tests.doubles.hash_model import FakeRunner
from tests.doubles.page_ledger import check_pages
from tests.scheduler.building import ManualStream, greedy, make_executor, make_planner
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import Destination
from transfer.states import TransferState
from worker.policies import DEFAULTS, Policies
from worker.requests import Outbox

DECODE = WorkerAddress("decode-0", 7, ranks=(RankEndpoint("somewhere"),))
PREFILL = WorkerAddress("prefill-0", 3, peer="here")
PROMPT = tuple(range(10))


class Sender:
    """A FrameSender that notes what it is told, and reads pages for as long as `reading` says."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.open_destinations: dict[Destination, list[int]] = {}
        self.transfers: dict[Destination, SimpleNamespace] = {}
        self.reading: set[Destination] = set()
        self.counters: dict[str, float] = {}
        self.lost: list[Destination] = []
        self.is_moving = False
        self.writes_on_device = False

    def attach(self, instance: int, layout: KvLayout, offer: bytes, sent: KvLayout | None = None) -> bytes:
        return b"our answer"

    def reads_host(self, destination: Destination) -> bool:
        return not self.writes_on_device

    def open(self, destination: Destination, source_pages: Sequence[int], num_tokens: int) -> SimpleNamespace:
        self.calls.append(("open", destination.reservation, num_tokens))
        self.open_destinations[destination] = list(source_pages)
        self.transfers[destination] = SimpleNamespace(state=TransferState.REQUESTED)
        return self.transfers[destination]

    def layers_ready(self, destination: Destination, layers: Iterable[int], num_tokens: int) -> None:
        self.calls += [("layer", destination.reservation, layer, num_tokens) for layer in layers]

    def finish(self, destination: Destination, first_tokens: tuple[int, ...], *also_told: object) -> None:
        self.calls.append(("finish", destination.reservation, first_tokens))
        self.transfers[destination].state = TransferState.SENDING

    def cancel(self, destination: Destination) -> None:
        if self.open_destinations.pop(destination, None) is not None:
            self.calls.append(("cancel", destination.reservation))

    def delivered(self, destination: Destination) -> None:
        del self.open_destinations[destination]
        self.calls.append(("delivered", destination.reservation))

    def add_credit(self, instance: int, reservation: int, num_bytes: int) -> None:
        self.calls.append(("credit", instance, reservation, num_bytes))

    def drop_peer(self, instance: int) -> None:
        self.calls.append(("drop", instance))
        for destination in [
            destination for destination in self.open_destinations if destination.peer.instance == instance
        ]:
            del self.open_destinations[destination]

    def broken(self) -> list[Destination]:
        lost, self.lost = self.lost, []
        return lost

    def pump(self) -> None:
        return

    def is_reading(self, destination: Destination) -> bool:
        return destination in self.reading

    def close(self) -> None:
        return


class Bench:
    """One prefill worker that has greeted one decode worker; launches run on command."""

    def __init__(
        self,
        *,
        chunk_size: int = 4,
        overlap: bool = True,
        greeted: bool = True,
        num_pages: int = 64,
        policies: Policies = DEFAULTS,
    ) -> None:
        self.stream = ManualStream()
        self.sender = Sender()
        self.runner = FakeRunner(vocab_size=97, context_length=64)
        self.clock = VirtualClock()
        kv = PagedKv(self.runner.kv_layout(4), num_pages)
        self.executor = make_executor(self.stream, runner=self.runner, kv=kv, forward_clock=self.clock)
        self.planner = make_planner(self.executor)
        self.worker = PrefillWorker(
            self.planner,
            cast(FrameSender, self.sender),
            PREFILL,
            Fingerprint("print"),
            self.clock,
            replace(policies, overlap=overlap, chunk_size=chunk_size),
        )
        if greeted:
            self.worker.on_peer(7, Hello(DECODE, self.planner.layout, Fingerprint("print")))
            self.worker.outbox.decode.clear()

    def job(self, number: int = 1, prompt: tuple[int, ...] = PROMPT, n: int = 1, **more: Any) -> PrefillJob:
        sampling = more.pop("sampling", greedy(5))
        made = PrefillJob(Assign(f"r{number}", 0, prompt, sampling, n, None, **more), number)
        self.worker.on_peer(7, made)
        return made

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Steps and completes launches until there is nothing to do, or `until`."""
        while not (until and until()):
            if not self.worker.turn():
                if not self.planner.in_flight:
                    return
                copy_done = self.executor.launches[0].copy_done
                assert copy_done is not None
                copy_done.synchronize()

    def sent(self, kind: type) -> list[object]:
        return [message for _, message in self.worker.outbox.decode if isinstance(message, kind)]

    def at_rest(self) -> bool:
        counts = self.planner.kv_manager.pages.counts()
        check_pages(self.planner.kv_manager.pages)
        return (
            counts.free == counts.total
            and self.planner.kv_manager.rows.num_free == self.planner.kv_manager.rows.num_rows - 1
        )


LINK_LAYOUT = KvLayout.uniform(2, 1, 4, 4, "float32")
LINK_DECODE = b"d#7"
HELLO = Hello(WorkerAddress("d", 7, ranks=(RankEndpoint("tcp://127.0.0.1:5"),)), LINK_LAYOUT, Fingerprint("story"))
JOB = PrefillJob(Assign("r", 0, (1, 2), SamplingParams(4), 1, None), 1)


class FakeRouter:
    """Gives what a test has put in, keeps what is sent."""

    socket: Any = None

    def __init__(self) -> None:
        self.arrived: list[tuple[bytes, bytes]] = []
        self.sent: list[tuple[bytes, bytes]] = []

    def receive(self) -> list[tuple[bytes, bytes]]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def send(self, identity: bytes, raw: bytes) -> bool:
        self.sent.append((identity, raw))
        return True


class LinkBench:
    def __init__(self) -> None:
        self.router, self.outbox = FakeRouter(), Outbox()
        self.delivered: list[tuple[int, ToPrefill]] = []
        self.lost: list[int] = []
        self.session = Session(0)  # of LINK_DECODE
        router: Any = self.router
        sender: Any = None
        self.link = DecodeLink(
            router, sender, 3, self.outbox, lambda *ending: self.delivered.append(ending), self.lost.append
        )

    def seal(self, who: bytes, message: ToPrefill | bytes) -> bytes:
        """As LINK_DECODE says it, which begins a session with each Hello; others are always at their first message."""
        body = message if isinstance(message, bytes) else TO_PREFILL.encode(message)
        if who != LINK_DECODE:
            return Envelope(1, 1, 0, body).sealed()
        if isinstance(message, Hello):
            self.session = Session(self.session.number + 1)
        return self.session.seal(body)

    def hear(self, *messages: tuple[bytes, ToPrefill | bytes]) -> Sequence[tuple[int, ToPrefill]]:
        """What is delivered of these."""
        return self.take(*((who, self.seal(who, message)) for who, message in messages))

    def take(self, *raws: tuple[bytes, bytes]) -> Sequence[tuple[int, ToPrefill]]:
        """What is delivered of what comes so."""
        self.router.arrived += raws
        self.delivered.clear()
        self.link.receive()
        return self.delivered

    @property
    def num_refused(self) -> float:
        return self.link.refusals.total
