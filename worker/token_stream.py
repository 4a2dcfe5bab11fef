"""New tokens on their way to the gateway: gathered during a step, sent as one message.

Shared by decode and unified. What it does not know: requests, pages, sockets.
"""

from protocol.messages_gateway import ChoiceTokens, Stamp, Tokens
from scheduler.req import Req
from worker.outbox import Outbox


class TokenStream:
    """What the next `Tokens` message will say."""

    def __init__(self) -> None:
        self._choices: list[ChoiceTokens] = []
        self._stamps: dict[str, tuple[Stamp, ...]] = {}

    def add(self, req: Req, token: int) -> int:
        """Appends `token` to `req`, which may end with it; returns its seq."""
        seq = len(req.outputs)
        req.append(token)
        self._choices.append(ChoiceTokens(req.request_id, req.attempt, req.choice, seq, (token,), req.finish or ""))
        return seq

    def close(self, request_id: str, stamps: list[Stamp]) -> None:
        """The request's last choice has ended: its stamps travel with the message."""
        self._stamps[request_id] = tuple(stamps)

    def flush(self, outbox: Outbox) -> None:
        """Sends what was gathered, if anything was."""
        if self._choices:
            outbox.gateway.append(Tokens(tuple(self._choices), self._stamps))
            self._choices, self._stamps = [], {}
