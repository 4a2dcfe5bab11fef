"""Allocates parts of a ring of bytes. They are freed in the order in which they were taken. Pure."""

from collections import deque


class Ring:
    """Each part is contiguous. A part that does not fit before the end begins at the start again."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._parts: deque[tuple[int, int]] = deque()  # [start, end), oldest first

    def take(self, num_bytes: int) -> int | None:
        """Takes `num_bytes` bytes and returns their start, or None if there is no room."""
        assert 0 < num_bytes <= self.num_bytes, (num_bytes, self.num_bytes)
        start = self._room(num_bytes)
        if start is not None:
            self._parts.append((start, start + num_bytes))
        return start

    def give_back(self) -> None:
        """Frees the oldest part."""
        self._parts.popleft()

    def _room(self, num_bytes: int) -> int | None:
        if not self._parts:
            return 0
        oldest, newest_end = self._parts[0][0], self._parts[-1][1]
        if newest_end <= oldest:  # the newest part began at the start again
            return newest_end if newest_end + num_bytes <= oldest else None
        if newest_end + num_bytes <= self.num_bytes:
            return newest_end
        return 0 if num_bytes <= oldest else None
