"""When nobody asks, and what the workers and the gateway have counted in a run. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# By the words of a report: the counter of /metrics, and the label by which it is told apart.
COUNTERS: Final = {
    "launches": ("baton_launches_total", "worker"),
    "idle launches": ("baton_idle_launches_total", "worker"),
    "choices moved to host memory": ("baton_kv_spills_total", "worker"),
    "attempts after the first": ("baton_request_retries_total", "reason"),
    "requests that ended": ("baton_requests_total", "outcome"),
}


@dataclass(frozen=True)
class Rest:
    """A time in which nobody asked. `launches`: of all workers meanwhile. None: one of them was started again."""

    seconds: float
    launches: int | None

    @staticmethod
    def between(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], seconds: float) -> "Rest":
        """From the rows of /workers at its beginning and at its end."""
        was, now = ({row["pid"]: row["launches"] for row in rows} for rows in (before, after))
        return Rest(seconds, sum(now.values()) - sum(was.values()) if was and was.keys() == now.keys() else None)


class Counted:
    """How far counters of /metrics have grown since the first page. One that falls has begun again at 0."""

    def __init__(self) -> None:
        self.grown: dict[str, Counter[str]] = {words: Counter() for words in COUNTERS}
        self._last: dict[tuple[str, str], int] = {}
        self._has_begun = False

    def take(self, page: str) -> None:
        """Reads one page."""
        for words, (name, label) in COUNTERS.items():
            for match in re.finditer(rf'^{name}\{{(?:.*,)?{label}="([^"]*)".*\}} (\S+)$', page, re.MULTILINE):
                value, key = int(float(match[2])), (words, match[1])
                last = self._last.get(key, 0 if self._has_begun else value)
                self.grown[words][match[1]] += value - last if value >= last else value
                self._last[key] = value
        self._has_begun = self._has_begun or bool(self._last)

    def shown(self) -> dict[str, dict[str, int]]:
        """Those that have grown."""
        return {
            words: {key: count for key, count in sorted(counts.items()) if count}
            for words, counts in self.grown.items()
        }
