"""Who may say what to a prefill worker: who has said hello, and speaks for itself."""

import logging

import pytest

from protocol.fingerprint import Fingerprint
from protocol.message import MAX_STRANGER_BYTES
from protocol.messages_gateway import Assign, SamplingParams
from protocol.messages_handoff import (
    TO_DECODE,
    CancelJob,
    DataCredit,
    Hello,
    HelloRefused,
    KvDelivered,
    PrefillJob,
    ToPrefill,
)
from runtime.session import Envelope
from tests.prefill.driving import HELLO, JOB, LINK_DECODE, LINK_LAYOUT, LinkBench

pytestmark = pytest.mark.slow

LONG_JOB = PrefillJob(Assign("r", 0, (70_000,) * MAX_STRANGER_BYTES, SamplingParams(4), 1, None), 1)


@pytest.fixture
def bench() -> LinkBench:
    return LinkBench()


def test_after_hello_everything_is_heard(bench: LinkBench) -> None:
    messages: list[ToPrefill] = [HELLO, JOB, LONG_JOB, DataCredit(1, 5), KvDelivered(1), CancelJob(1)]
    assert bench.hear(*((LINK_DECODE, message) for message in messages)) == [(7, message) for message in messages]
    assert bench.num_refused == 0


@pytest.mark.parametrize("message", [JOB, DataCredit(1, 5), KvDelivered(1), CancelJob(1), b"\xc1"])
@pytest.mark.parametrize("who", [b"x#9", b"y#7", b"d#07", b"d#77", b"d", b"", b"#", b"d#-7", b"d#7x", b"\xff\x00#7"])
def test_a_stranger_is_not_heard(who: bytes, message: ToPrefill | bytes, bench: LinkBench) -> None:
    assert bench.hear((who, message)) == []
    assert bench.hear((LINK_DECODE, HELLO), (who, message), (LINK_DECODE, JOB)) == [(7, HELLO), (7, JOB)]
    assert bench.num_refused == 2


@pytest.mark.parametrize("who", [b"x#7", b"d#07", b"x", b"", b"#7", b"d#7#7"])
def test_hello_in_the_name_of_another(who: bytes, bench: LinkBench) -> None:
    assert bench.hear((who, HELLO)) == []
    assert bench.hear((LINK_DECODE, HELLO), (who, HELLO), (LINK_DECODE, JOB)) == [(7, HELLO), (7, JOB)]
    assert bench.num_refused == 2


def test_a_strangers_hello_is_short(bench: LinkBench) -> None:
    long = Hello(HELLO.address, LINK_LAYOUT, Fingerprint("f" * MAX_STRANGER_BYTES))
    assert bench.hear((LINK_DECODE, long)) == [] and bench.num_refused == 1


def test_who_was_refused_or_lost_is_a_stranger_again(bench: LinkBench) -> None:
    bench.hear((LINK_DECODE, HELLO))
    bench.outbox.decode.append((7, HelloRefused("no")))
    bench.link.flush()
    assert bench.router.sent == [(LINK_DECODE, Envelope(1, 0, 1, TO_DECODE.encode(HelloRefused("no"))).sealed())]
    assert bench.hear((LINK_DECODE, JOB)) == [] and bench.num_refused == 1
    assert bench.hear((LINK_DECODE, HELLO), (LINK_DECODE, JOB)) == [(7, HELLO), (7, JOB)]
    bench.link.forget(7)
    assert bench.hear((LINK_DECODE, JOB)) == [] and bench.num_refused == 2


def test_a_flood_is_counted_and_logged_a_few_times(caplog: pytest.LogCaptureFixture, bench: LinkBench) -> None:
    bench.hear((LINK_DECODE, HELLO))
    with caplog.at_level(logging.WARNING):
        heard = bench.hear(*((b"x#%d" % index, JOB) for index in range(3000)), (LINK_DECODE, JOB))
    assert heard == [(7, JOB)] and bench.num_refused == 3000
    assert [record.__dict__["baton_fields"]["count"] for record in caplog.records] == [1, 10, 100, 1000]
