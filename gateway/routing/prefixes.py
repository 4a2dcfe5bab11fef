"""Which prefixes of prompts a worker has cached, as far as it has told, and which it is about to cache.

It may be wrong, because news is late and bounded, and a request may fail. Then a worker computes or gets more than was
expected.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from protocol.prefixes import STRIDE
from protocol.worker_facts import CacheNews

MOST_PREFIXES: Final = 65_536  # of one worker: KV of 4 million tokens, in some 6 MB
PATIENCE: Final = 4  # news, which come four times a second, until an expected prefix must have been told


class KnownPrefixes:
    """Those of one worker. The ones that were told first are forgotten when there are too many."""

    def __init__(self) -> None:
        self._hashes: dict[bytes, None] = {}
        self._expected: dict[bytes, int] = {}  # not told yet: how many news may still come without it

    def __len__(self) -> int:
        return len(self._hashes)

    def learn(self, news: CacheNews) -> None:
        """Takes what the worker has told."""
        if news.flushed:
            self._hashes.clear()
            self._expected.clear()
        for prefix in news.dropped:
            self._hashes.pop(prefix, None)
            self._expected.pop(prefix, None)
        self._hashes.update(dict.fromkeys(news.added))
        self._expected = {prefix: left - 1 for prefix, left in self._expected.items() if left > 1}
        _forget_oldest(self._hashes)

    def expect(self, hashes: Sequence[bytes]) -> None:
        """The worker has got a prompt with these prefixes. It will cache them, and tell."""
        self._expected.update(dict.fromkeys(hashes, PATIENCE))
        _forget_oldest(self._expected)

    def longest(self, hashes: Sequence[bytes]) -> int:
        """How many tokens at the start of a prompt the worker holds, or will. `hashes` are those of its prefixes, in
        order."""
        numbers = range(len(hashes), 0, -1)
        return next((number * STRIDE for number in numbers if self._has(hashes[number - 1])), 0)

    def _has(self, prefix: bytes) -> bool:
        return prefix in self._hashes or prefix in self._expected


def _forget_oldest(hashes: dict[bytes, Any]) -> None:
    for prefix in list(islice(hashes, max(0, len(hashes) - MOST_PREFIXES))):
        del hashes[prefix]
