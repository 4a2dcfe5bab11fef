"""A gateway without sockets, with a pair of workers, a third worker and one request: a test says what each says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from gateway.control import Control, ControlSocket
from gateway.members import WorkerKey
from gateway.membership import Membership
from gateway.requests import Delivery
from gateway.retries import RetryRules
from gateway.translate import Prompt
from protocol.errors import BatonError, WireError
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import (
    TO_GATEWAY,
    Assign,
    ChoiceTokens,
    FinishReason,
    FirstToken,
    Heartbeat,
    RankEndpoint,
    Register,
    Role,
    SamplingParams,
    ToGateway,
    Tokens,
    ToWorker,
    WorkerAddress,
)
from protocol.worker_facts import KvPages, WorkerStats
from runtime.session import Envelope
from testkit.fake_worker import LAYOUT
from tests.doubles.clock import VirtualClock
from tests.gateway.worker_ends import WorkerEnds

PREFILL, DECODE, OTHER = WorkerKey("p", 11), WorkerKey("d", 12), WorkerKey("d2", 13)
STATS = WorkerStats(KvPages(256, 256), 0, 0, counters={"frames": 5.0})
OUTPUTS = (65, 66, 67)


def register(key: WorkerKey, role: Role, **changed: Any) -> Register:
    address = WorkerAddress(
        key.worker_id, key.instance, peer="tcp://127.0.0.1:1", ranks=(RankEndpoint("tcp://127.0.0.1:2"),)
    )
    return replace(
        Register(address, role, 4242, "host", LAYOUT, Fingerprint("story"), 300, 512, 64, 1024, STATS), **changed
    )


class PairBench:
    """A gateway with a pair, a worker beside it, and a request of the pair."""

    is_full = False  # of the socket: workers take what is sent to them

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, ToWorker]] = []
        self._ends = WorkerEnds()
        self.got: list[int] = []
        self.finish: FinishReason | None = None
        self.control = Control(
            cast(ControlSocket, self), VirtualClock(), "round_robin", RetryRules(3, 4.0), Membership(7)
        )
        for key, role in ((PREFILL, Role.PREFILL), (DECODE, Role.DECODE), (OTHER, Role.DECODE)):
            self.say(key.identity, register(key, role))
        self.control.dispatch.assign("r1", Prompt((1, 2, 3), SamplingParams(len(OUTPUTS)), 1), self)
        self.decode = next(each for each, message in self.sent if isinstance(message, Assign))
        self.other = OTHER.identity if self.decode == DECODE.identity else DECODE.identity
        self.sent.clear()

    # ---- the socket ----

    def start(self, on_message: Callable[[bytes, bytes], None]) -> None:
        """Nothing comes by itself."""

    def send(self, identity: bytes, raw: bytes) -> bool:
        if (message := self._ends.hear(identity, raw)) is not None:
            self.sent.append((identity, message))
        return True

    def close(self) -> None:
        """Nothing to close."""

    # ---- the client ----

    def on_tokens(self, delivery: Delivery) -> None:
        self.got += delivery.token_ids
        self.finish = delivery.finish

    def on_failed(self, error: BatonError) -> None:
        raise AssertionError(f"the request fails: {error}")

    # ---- workers ----

    def say(self, identity: bytes, message: ToGateway | bytes) -> None:
        self.control._on_raw(identity, self._ends.say(identity, message))

    def inject(self, identity: bytes, raw: bytes) -> None:
        """Somebody says `raw` under the name of a worker."""
        self.control._on_raw(identity, raw)

    def state(self) -> object:
        record = self.control.dispatch.requests.find("r1")
        assert record is not None
        choices = [repr(choice) for choice in record.choices]
        return self.control.membership.members, dict(self.control.dispatch.loads), choices, list(record.attempts)

    def refused(self, identity: bytes, message: ToGateway | bytes) -> None:
        """It is counted, changes nothing, and nobody is told anything."""
        before, num_refused = self.state(), self.control.refusals.total
        if isinstance(message, bytes) and not is_readable(message):  # a worker that counts it is lost
            self.inject(identity, Envelope(1, 99, 0, message).sealed())
        else:
            self.say(identity, message)
        assert self.control.refusals.total == num_refused + 1
        assert self.state() == before
        assert self.sent == [] and self.got == []

    def finish_request(self) -> None:
        """The good messages of the good workers still do what they did."""
        self.say(PREFILL.identity, FirstToken((ChoiceTokens("r1", 0, 0, 0, OUTPUTS[:1]),)))
        self.say(self.decode, Tokens((ChoiceTokens("r1", 0, 0, 0, OUTPUTS, "length"),)))
        assert (tuple(self.got), self.finish) == (OUTPUTS, FinishReason.LENGTH)
        assert self.control.dispatch.loads == {} and len(self.control.dispatch.requests) == 0
        for key in (PREFILL, DECODE, OTHER):
            self.say(key.identity, Heartbeat(key.worker_id, key.instance, STATS))
            assert self.control.membership.find(key) is not None
        assert self.sent == []


def is_readable(raw: bytes) -> bool:
    try:
        TO_GATEWAY.decode(raw)
    except WireError:
        return False
    return True
