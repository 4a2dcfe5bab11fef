"""Who may say what to a prefill worker: who has said hello, and speaks for itself."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from prefill.decode_link import DecodeLink
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.message import MAX_STRANGER_BYTES
from protocol.messages_gateway import Assign, RankEndpoint, SamplingParams, WorkerAddress
from protocol.messages_handoff import (
    TO_DECODE,
    TO_PREFILL,
    CancelJob,
    DataCredit,
    Hello,
    HelloRefused,
    KvDelivered,
    PrefillJob,
    ToPrefill,
)
from runtime.session import Envelope, Session
from worker.requests import Outbox

pytestmark = pytest.mark.slow

LAYOUT = KvLayout.uniform(2, 1, 4, 4, "float32")
DECODE = b"d#7"
HELLO = Hello(WorkerAddress("d", 7, ranks=(RankEndpoint("tcp://127.0.0.1:5"),)), LAYOUT, Fingerprint("story"))
JOB = PrefillJob(Assign("r", 0, (1, 2), SamplingParams(4), 1, None), 1)
LONG_JOB = PrefillJob(Assign("r", 0, (70_000,) * MAX_STRANGER_BYTES, SamplingParams(4), 1, None), 1)


class FakeRouter:
    """Gives what a test has put in, keeps what is sent."""

    socket: Any = None

    def __init__(self) -> None:
        self.arrived: list[tuple[bytes, bytes]] = []
        self.sent: list[tuple[bytes, bytes]] = []

    def receive(self) -> list[tuple[bytes, bytes]]:
        found, self.arrived = self.arrived, []
        return found

    def send(self, identity: bytes, raw: bytes) -> bool:
        self.sent.append((identity, raw))
        return True


class Bench:
    def __init__(self) -> None:
        self.router, self.outbox = FakeRouter(), Outbox()
        self.delivered: list[tuple[int, ToPrefill]] = []
        self.lost: list[int] = []
        self.session = Session(0)  # of DECODE
        router: Any = self.router
        sender: Any = None
        self.link = DecodeLink(
            router, sender, 3, self.outbox, lambda *each: self.delivered.append(each), self.lost.append
        )

    def seal(self, who: bytes, message: ToPrefill | bytes) -> bytes:
        """As DECODE says it, which begins a session with each Hello; others are always at their first message."""
        body = message if isinstance(message, bytes) else TO_PREFILL.encode(message)
        if who != DECODE:
            return Envelope(1, 1, 0, body).sealed()
        if isinstance(message, Hello):
            self.session = Session(self.session.epoch + 1)
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


def test_after_hello_everything_is_heard() -> None:
    bench = Bench()
    messages: list[ToPrefill] = [HELLO, JOB, LONG_JOB, DataCredit(1, 5), KvDelivered(1), CancelJob(1)]
    assert bench.hear(*((DECODE, each) for each in messages)) == [(7, each) for each in messages]
    assert bench.num_refused == 0


@pytest.mark.parametrize("message", [JOB, DataCredit(1, 5), KvDelivered(1), CancelJob(1), b"\xc1"])
@pytest.mark.parametrize("who", [b"x#9", b"y#7", b"d#07", b"d#77", b"d", b"", b"#", b"d#-7", b"d#7x", b"\xff\x00#7"])
def test_a_stranger_is_not_heard(who: bytes, message: ToPrefill | bytes) -> None:
    bench = Bench()
    assert bench.hear((who, message)) == []
    assert bench.hear((DECODE, HELLO), (who, message), (DECODE, JOB)) == [(7, HELLO), (7, JOB)]
    assert bench.num_refused == 2


@pytest.mark.parametrize("who", [b"x#7", b"d#07", b"x", b"", b"#7", b"d#7#7"])
def test_hello_in_the_name_of_another(who: bytes) -> None:
    bench = Bench()
    assert bench.hear((who, HELLO)) == []
    assert bench.hear((DECODE, HELLO), (who, HELLO), (DECODE, JOB)) == [(7, HELLO), (7, JOB)]
    assert bench.num_refused == 2


def test_a_strangers_hello_is_short() -> None:
    bench = Bench()
    long = Hello(HELLO.address, LAYOUT, Fingerprint("f" * MAX_STRANGER_BYTES))
    assert bench.hear((DECODE, long)) == [] and bench.num_refused == 1


def test_who_was_refused_or_lost_is_a_stranger_again() -> None:
    bench = Bench()
    bench.hear((DECODE, HELLO))
    bench.outbox.decode.append((7, HelloRefused("no")))
    bench.link.flush()
    assert bench.router.sent == [(DECODE, Envelope(1, 0, 1, TO_DECODE.encode(HelloRefused("no"))).sealed())]
    assert bench.hear((DECODE, JOB)) == [] and bench.num_refused == 1
    assert bench.hear((DECODE, HELLO), (DECODE, JOB)) == [(7, HELLO), (7, JOB)]
    bench.link.forget(7)
    assert bench.hear((DECODE, JOB)) == [] and bench.num_refused == 2


def test_a_flood_is_counted_and_logged_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.hear((DECODE, HELLO))
    with caplog.at_level(logging.WARNING):
        heard = bench.hear(*((b"x#%d" % index, JOB) for index in range(3000)), (DECODE, JOB))
    assert heard == [(7, JOB)] and bench.num_refused == 3000
    assert [record.__dict__["baton_fields"]["count"] for record in caplog.records] == [1, 10, 100, 1000]
