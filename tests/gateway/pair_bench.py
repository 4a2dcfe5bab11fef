"""A gateway without sockets, with a pair of workers, a third worker and one request: a test says what each says."""

from gateway.routing.members import WorkerKey
from protocol.errors import WireError
from protocol.messages_gateway import (
    TO_GATEWAY,
    ChoiceTokens,
    FinishReason,
    FirstToken,
    Heartbeat,
    Role,
    ToGateway,
    Tokens,
)
from protocol.worker_facts import KvPages, WorkerStats
from runtime.session import Envelope
from tests.gateway.control_bench import ControlBench

PREFILL, DECODE, OTHER = WorkerKey("p", 1), WorkerKey("d", 1), WorkerKey("d2", 1)
STATS = WorkerStats(KvPages(256, 256), 0, 0, counters={"frames": 5.0})
OUTPUTS = (65, 66, 67)


class PairBench(ControlBench):
    """A gateway with a pair, a worker beside it, and a request of the pair."""

    def __init__(self) -> None:
        super().__init__(max_tokens=len(OUTPUTS))
        for key, role in ((PREFILL, Role.PREFILL), (DECODE, Role.DECODE), (OTHER, Role.DECODE)):
            self.join(key.worker_id, role)
        self.client, assign = self.ask("r1")
        owner = next(worker_id for worker_id, message in self.sent if message is assign)
        self.decode, self.other = sorted(
            (DECODE.identity, OTHER.identity), key=lambda each: each[:-2] != owner.encode()
        )
        self.sent.clear()

    def inject(self, identity: bytes, raw: bytes) -> None:
        """Somebody says `raw` under the name of a worker."""
        self.control._on_raw(identity, raw)

    def state(self) -> object:
        record = self.dispatch.requests.find("r1")
        assert record is not None
        choices = [repr(choice) for choice in record.choices]
        return self.control.membership.members, dict(self.dispatch.loads), choices, list(record.attempts)

    def refused(self, identity: bytes, message: ToGateway | bytes) -> None:
        """It is counted, changes nothing, and nobody is told anything."""
        before, num_refused = self.state(), self.control.refusals.total
        if isinstance(message, bytes) and not is_readable(message):  # a worker that counts it is lost
            self.inject(identity, Envelope(1, 99, 0, message).sealed())
        else:
            self.say(identity, message)
        assert self.control.refusals.total == num_refused + 1
        assert self.state() == before
        assert self.sent == [] and self.client.tokens == [[]]

    def finish_request(self) -> None:
        """The good messages of the good workers still do what they did."""
        self.say(PREFILL.identity, FirstToken((ChoiceTokens("r1", 0, 0, 0, OUTPUTS[:1]),)))
        self.say(self.decode, Tokens((ChoiceTokens("r1", 0, 0, 0, OUTPUTS, "length"),)))
        assert (self.client.tokens, self.client.finish) == ([[*OUTPUTS]], [FinishReason.LENGTH])
        self.expect_rest()
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
