"""Whether a worker should end because its launches fail.

    no failure --failed--> 1 --failed--> 2 --failed--> 3 or more, no request in all of them: broken
         ^------------------- a launch succeeds ------------------'

It should not if one request explains the failures. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

TOO_MANY = 3  # launches that fail in a row


@dataclass(frozen=True)
class LaunchFailures:
    """The launches that have failed since the last success. An attempt is (request id, attempt number)."""

    count: int = 0
    common: frozenset[str] = frozenset()  # ids of the requests that were in all of these launches
    newest: frozenset[tuple[str, int]] = frozenset()  # the attempts of the last one

    def failed(self, attempts: Iterable[tuple[str, int]]) -> "LaunchFailures":
        """The failures after a launch with these attempts has failed.

        A launch does not count if all its attempts failed with the last one: it was in flight already.
        """
        now = frozenset(attempts)
        if now <= self.newest:
            return self
        ids = frozenset(request_id for request_id, _ in now)
        return LaunchFailures(self.count + 1, self.common & ids if self.count else ids, now)

    @property
    def is_broken(self) -> bool:
        """Whether TOO_MANY launches have failed in a row and no request was in all of them."""
        return self.count >= TOO_MANY and not self.common
