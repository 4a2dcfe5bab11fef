"""What a worker, a faulty one or a stranger may say to the gateway: refused and counted, and nobody else notices."""

import logging
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from gateway.routing.members import WorkerKey
from protocol.fingerprint import Fingerprint
from protocol.message import MAX_STRANGER_BYTES, VERSION
from protocol.messages_gateway import (
    TO_GATEWAY,
    ChoiceTokens,
    FirstToken,
    Heartbeat,
    Leaving,
    Left,
    Preempted,
    RequestFailed,
    ToGateway,
    Tokens,
    WorkerAddress,
)
from protocol.worker_facts import Stamp
from runtime.session import ENVELOPE_BYTES
from tests.gateway.pair_bench import DECODE, OTHER, OUTPUTS, PREFILL, STATS, PairBench
from tests.gateway.worker_ends import register

pytestmark = pytest.mark.slow

STRANGER = b"x#99"


def packed(kind: Any, fields: Any, version: Any = VERSION) -> bytes:
    raw: bytes = msgpack.packb([version, kind, fields], strict_types=False)
    return raw


def fields_of(message: ToGateway) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(TO_GATEWAY.encode(message), strict_map_key=False)[2]
    return found


def changed(message: ToGateway, path: str, value: Any) -> bytes:
    """`message` with another value at `path`."""
    fields = fields_of(message)
    *above, last = path.split(".")
    at: Any = fields
    for name in above:
        at = at[int(name) if name.isdigit() else name]
    at[last] = value
    return packed(type(message).__name__, fields)


BEAT = Heartbeat("d", 1, STATS)
TOKENS = Tokens((ChoiceTokens("r1", 0, 0, 0, OUTPUTS, "length"),))
REGISTER = register(DECODE.worker_id, DECODE.instance)
FAILED = RequestFailed("r1", 0, "internal_error", "x")
DEEP: Any = 5
for _ in range(900):
    DEEP = [DEEP]

FROM_MEMBER: dict[str, bytes] = {  # what a boundary refuses, tests/protocol tells: here one of each kind
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "longer": TO_GATEWAY.encode(TOKENS) + b"\x00",
    "4 MiB and more": packed("Heartbeat", "x" * 4 * 1024 * 1024),
    "deep in a field": changed(BEAT, "worker_id", DEEP),
    "version 1": packed("Heartbeat", fields_of(BEAT), 1),
    "name of another boundary": packed("PrefillJob", {}),
    "name long": packed("x" * 100_000, {}),
    "fields nothing": packed("Heartbeat", {}),
    "id control": changed(BEAT, "worker_id", "d\x1b[31m"),
    "id of another": changed(BEAT, "worker_id", "d3"),
    "instance of another": changed(BEAT, "instance", 77),
    "pages negative": changed(BEAT, "stats.kv_pages.free", -1),
    "two ranks": changed(REGISTER, "address.ranks", [{"data": "tcp://127.0.0.1:2"}, {"data": "tcp://127.0.0.1:3"}]),
    "address of another": changed(REGISTER, "address.worker_id", "p"),
    "leaving of another": TO_GATEWAY.encode(Leaving("p", 1)),
    "end of another": TO_GATEWAY.encode(Left("p", 1)),
    "token none": changed(TOKENS, "choices.0.token_ids", [None] * 100_000),
    "stamp nan": changed(Tokens((), {}), "stamps", {"r1": [{"name": "x", "at": float("nan"), "worker_id": "d"}]}),
}


@pytest.mark.parametrize("name", FROM_MEMBER)
def test_a_member_that_talks_nonsense(name: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = PairBench()
    with caplog.at_level(logging.WARNING):
        bench.refused(DECODE.identity, FROM_MEMBER[name])
    [record] = caplog.records
    said = record.__dict__["baton_fields"]["why"]
    assert len(said) < 600 and ("worker to gateway" in said or "its connection belongs to another" in said), said
    bench.finish_request()


@pytest.mark.parametrize(
    "message",
    [
        TOKENS,
        FAILED,
        FirstToken((ChoiceTokens("r1", 0, 0, 0, (7,)),)),
        Tokens(()),
        BEAT,
        Leaving("d", 1),
        Left("d", 1),
        REGISTER,
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_stranger_speaks_for_nobody(message: ToGateway) -> None:
    bench = PairBench()
    for identity in (STRANGER, b"", b"\x00\xff", b"d#13", b"d#01", b"d", b"x" * 255):
        bench.refused(identity, message)
    assert bench.control.refusals.total == 7
    bench.finish_request()


@pytest.mark.parametrize(
    "message", [TOKENS, FAILED, Preempted("r1", 0, 0), FirstToken((ChoiceTokens("r1", 0, 0, 0, (7,)),))]
)
def test_a_member_speaks_only_of_its_own_requests(message: ToGateway) -> None:
    bench = PairBench()
    bench.refused(bench.other, message)
    assert bench.control.refusals.total == 1
    bench.finish_request()


def test_stamps_are_kept_of_a_running_attempt_and_of_no_other() -> None:
    bench = PairBench()
    record = bench.control.dispatch.requests.find("r1")
    assert record is not None
    for attempt, name in ((0, "queued"), (5, "other attempt")):
        stamps: dict[str, tuple[Stamp, ...]] = {"r1": (Stamp(name, 1.0, "d"),)}
        bench.say(bench.decode, Tokens((ChoiceTokens("r1", attempt, 0, 0, OUTPUTS[:1]),), stamps))
    assert [stamp.name for stamp in record.stamps] == ["assigned", "queued"]


def test_a_strangers_message_is_short_and_a_members_may_be_long() -> None:
    bench = PairBench()
    long = replace(REGISTER, host="h" * MAX_STRANGER_BYTES)
    bench.refused(STRANGER, replace(long, address=WorkerAddress("x", 99)))
    bench.say(DECODE.identity, long)
    assert bench.control.refusals.total == 1
    bench.sent.clear()
    bench.finish_request()


def test_a_flood_is_counted_logged_a_few_times_and_kept_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    bench = PairBench()
    before = bench.state()
    with caplog.at_level(logging.WARNING):
        for index in range(12_000):
            bench.inject(b"x#%d" % index, b"noise %d" % index)
    assert bench.control.refusals.total == 12_000
    told = [record.__dict__["baton_fields"]["count"] for record in caplog.records]
    assert told == [1, 10, 100, 1000, 10_000]
    assert bench.state() == before
    bench.finish_request()


@pytest.mark.parametrize("raw", [b"", b"noise", b"\x07" + bytes(ENVELOPE_BYTES), TO_GATEWAY.encode(BEAT)])
def test_what_comes_without_an_envelope_is_refused_by_name(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    bench = PairBench()
    bench.inject(DECODE.identity, raw)
    assert bench.control.refusals.total == 1
    assert caplog.records[-1].__dict__["baton_fields"]["why"].startswith("envelope: got ")
    bench.finish_request()


def test_a_member_of_which_something_could_not_be_read_is_lost_with_its_next_message() -> None:
    bench = PairBench()
    bench.say(bench.other, b"nonsense")
    assert len(bench.control.membership.members) == 3
    bench.say(bench.other, Tokens(()))
    assert bench.other not in [member.key.identity for member in bench.control.membership.members]
    why = bench.control.membership.losses[WorkerKey.of(bench.other)].reason
    assert "has sent 3 messages, of which 2 arrived and could be read" in why


def test_only_members_have_sessions() -> None:
    bench = PairBench()
    for index in range(3):
        stranger = WorkerKey("s", index)
        bench.say(stranger.identity, register(stranger.worker_id, stranger.instance, fingerprint=Fingerprint("tale")))
    sessions = bench.control._sessions
    assert list(sessions) == [key.identity for key in (PREFILL, DECODE, OTHER)]
    bench.say(DECODE.identity, Left(DECODE.worker_id, DECODE.instance))
    assert list(sessions) == [PREFILL.identity, OTHER.identity]
