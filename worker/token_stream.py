"""Takes the tokens of each step and sends them to the gateway as one message. Used by decode and unified."""

from protocol.messages_gateway import ChoiceTokens, Stamp, Tokens
from scheduler.kv_book import KvBook
from scheduler.req import Req
from worker.assigned import Assigned
from worker.outbox import Outbox
from worker.phase_times import PhaseTimes


class TokenStream:
    """The contents of the next `Tokens` message. `stamps` name a choice's first two tokens; "" gets no stamp."""

    def __init__(self, book: KvBook, phases: PhaseTimes, stamps: tuple[str, str]) -> None:
        self._book = book
        self._phases = phases
        self._names = stamps
        self._choices: list[ChoiceTokens] = []
        self._stamps: dict[str, tuple[Stamp, ...]] = {}

    def add(self, request: Assigned, req: Req, token: int) -> bool:
        """Appends `token` to the choice `req`. True if the request has ended with it; then all memory is given back."""
        seq = len(req.outputs)
        req.append(token)
        # By position: one is made for each token, and keywords take twice as long (26 us instead of 12 for 64).
        self._choices.append(ChoiceTokens(req.request_id, req.attempt, req.choice, seq, (token,), req.finish or ""))

        if (index := seq - req.num_replayed) < 2 and self._names[index]:
            self._phases.stamp(request, self._names[index])
        if req.finish is None:
            return False

        req.release(self._book)
        if not request.has_ended:
            return False
        self._phases.stamp(request, "decode done")
        self._stamps[req.request_id] = tuple(request.stamps)
        return True

    def flush(self, outbox: Outbox) -> None:
        """Puts the message into `outbox`, if there are tokens."""
        if self._choices:
            outbox.gateway.append(Tokens(tuple(self._choices), self._stamps))
            self._choices, self._stamps = [], {}
