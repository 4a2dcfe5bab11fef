"""Keeps the tensors of a launch alive until the launch has completed, even if the host drops its own references."""

from collections import deque


class KeepAliveRing:
    """Holds (ticket, object) pairs in ticket order."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, object]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, ticket: int, used: object) -> None:
        """Keeps `used` alive until `ticket` has completed."""
        assert not self._held or self._held[-1][0] <= ticket, "tickets are held in order"
        self._held.append((ticket, used))

    def release(self, completed_ticket: int) -> None:
        """Drops everything up to `completed_ticket`."""
        while self._held and self._held[0][0] <= completed_ticket:
            self._held.popleft()
