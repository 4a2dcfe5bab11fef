"""Whether a worker whose launches fail should end, because the worker is at fault and not a request.

    no failure --failed--> 1 --failed--> 2 --failed--> 3 or more, no request in all of them: broken
         ^------------------- a launch succeeds ------------------'

Pure. What it does not know: launches, or what is done about it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

TOO_MANY = 3  # launches that fail in a row


@dataclass(frozen=True)
class LaunchFailures:
    """The launches that have failed since the last one that did not. Attempts are (request id, attempt number)."""

    count: int = 0
    common: frozenset[str] = frozenset()  # ids of the requests that all of these launches had
    newest: frozenset[tuple[str, int]] = frozenset()  # the attempts that failed with the last of them

    def failed(self, attempts: Iterable[tuple[str, int]]) -> "LaunchFailures":
        """The row after a launch with these attempts has failed.

        A launch of attempts that have just failed does not count: it was in flight already, and says nothing new.
        """
        now = frozenset(attempts)
        if now <= self.newest:
            return self
        ids = frozenset(request_id for request_id, _ in now)
        return LaunchFailures(self.count + 1, self.common & ids if self.count else ids, now)

    @property
    def is_broken(self) -> bool:
        """Whether so many launches have failed in a row, and no single request explains it."""
        return self.count >= TOO_MANY and not self.common
