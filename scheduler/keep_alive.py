"""Keeps what a launch uses alive until the launch has completed, however the host's own objects come and go.

What it does not know: streams; the engine says which ticket has completed.
"""

from collections import deque


class KeepAliveRing:
    """Holds (ticket, object) pairs in ticket order; two launches deep under the overlap schedule."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, object]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, ticket: int, used: object) -> None:
        """`used` stays alive until `ticket` has completed."""
        assert not self._held or self._held[-1][0] <= ticket, "tickets are held in order"
        self._held.append((ticket, used))

    def release(self, completed_ticket: int) -> None:
        """Lets go of everything up to `completed_ticket`."""
        while self._held and self._held[0][0] <= completed_ticket:
            self._held.popleft()
