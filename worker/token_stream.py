"""Gathers a step's new tokens and sends them to the gateway as one message. Used by decode and unified."""

from protocol.messages_gateway import ChoiceTokens, Stamp, Tokens
from scheduler.req import Req
from worker.outbox import Outbox


class TokenStream:
    """The contents of the next `Tokens` message."""

    def __init__(self) -> None:
        self._choices: list[ChoiceTokens] = []
        self._stamps: dict[str, tuple[Stamp, ...]] = {}

    def add(self, req: Req, token: int) -> int:
        """Appends `token` to `req`, which may end with it. Returns the token's seq."""
        seq = len(req.outputs)
        req.append(token)
        # By position: one is made for each token, and keywords take twice as long (26 us instead of 12 for 64).
        self._choices.append(ChoiceTokens(req.request_id, req.attempt, req.choice, seq, (token,), req.finish or ""))
        return seq

    def close(self, request_id: str, stamps: list[Stamp]) -> None:
        """Adds the stamps of a request whose last choice has ended."""
        self._stamps[request_id] = tuple(stamps)

    def flush(self, outbox: Outbox) -> None:
        """Puts the message into `outbox`, if there are tokens."""
        if self._choices:
            outbox.gateway.append(Tokens(tuple(self._choices), self._stamps))
            self._choices, self._stamps = [], {}
