"""Takes the tokens of each step and sends them to the gateway as one message. Used by decode and unified."""

from collections.abc import Mapping

from protocol.messages_gateway import ChoiceTokens, Stamp, Tokens
from scheduler.planner import Planner
from scheduler.req import Req
from worker.assigned import Assigned
from worker.outbox import Outbox
from worker.phase_times import PhaseTimes


class TokenStream:
    """The contents of the next `Tokens` message. `stamps` name a choice's first two tokens; "" gets no stamp."""

    def __init__(
        self,
        planner: Planner,
        requests: Mapping[tuple[str, int], Assigned],
        phases: PhaseTimes,
        stamps: tuple[str, str],
    ) -> None:
        """`requests` are the worker's, by (request_id, attempt)."""
        self._planner = planner
        self._requests = requests
        self._phases = phases
        self._names = stamps
        self._choices: list[ChoiceTokens] = []
        self._stamps: dict[str, tuple[Stamp, ...]] = {}

    def add(self, req: Req, run: tuple[int, ...]) -> bool:
        """Appends what a launch has drawn to the choice `req`. True if the request has ended with it; then all memory
        is given back."""
        seq = len(req.outputs)
        taken = req.append(run)
        if not taken:
            self._planner.go_on(req)
            return False
        # By position: one is made for each token, and keywords take twice as long (26 us instead of 12 for 64).
        self._choices.append(ChoiceTokens(req.request_id, req.attempt, req.choice, seq, taken, req.finish or ""))

        first = seq - req.num_replayed
        if first < 2:
            for name in filter(None, self._names[first : first + len(taken)]):
                self._phases.stamp(self._requests[req.request_id, req.attempt], name)
        if req.finish is None:
            return False

        self._planner.release(req)
        request = self._requests[req.request_id, req.attempt]
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
