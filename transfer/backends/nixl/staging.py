"""Which part of a ring of bytes is whose: parts are taken in order and given back in the same order. Pure.

What it does not know: the memory.
"""

from collections import deque


class Ring:
    """Each part is contiguous; what does not fit before the end begins at the start again."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._parts: deque[tuple[int, int]] = deque()  # [start, end), oldest first

    def take(self, num_bytes: int) -> int | None:
        """Where `num_bytes` bytes begin that nobody has; None while there is no room."""
        assert 0 < num_bytes <= self.num_bytes, (num_bytes, self.num_bytes)
        start = self._room(num_bytes)
        if start is not None:
            self._parts.append((start, start + num_bytes))
        return start

    def give_back(self) -> None:
        """The oldest part is free."""
        self._parts.popleft()

    def _room(self, num_bytes: int) -> int | None:
        if not self._parts:
            return 0
        oldest, newest_end = self._parts[0][0], self._parts[-1][1]
        if newest_end <= oldest:  # the newest has begun at the start again
            return newest_end if newest_end + num_bytes <= oldest else None
        if newest_end + num_bytes <= self.num_bytes:
            return newest_end
        return 0 if num_bytes <= oldest else None
