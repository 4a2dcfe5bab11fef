"""Which prefixes of prompts a worker has cached, as far as it has told.

It may be wrong, because news is late and bounded. Then a worker computes or gets more than was expected.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from protocol.messages_gateway import CacheNews
from protocol.prefixes import STRIDE

MOST_PREFIXES: Final = 65_536  # of one worker: KV of 4 million tokens, in some 6 MB


class KnownPrefixes:
    """Those of one worker. The ones that were told first are forgotten when there are too many."""

    def __init__(self) -> None:
        self._hashes: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def learn(self, news: CacheNews) -> None:
        """Takes what the worker has told."""
        if news.flushed:
            self._hashes.clear()
        for each in news.dropped:
            self._hashes.pop(each, None)
        self._hashes.update(dict.fromkeys(news.added))
        for each in list(islice(self._hashes, max(0, len(self._hashes) - MOST_PREFIXES))):
            del self._hashes[each]

    def longest(self, hashes: Sequence[bytes]) -> int:
        """How many tokens at the start of a prompt the worker holds. `hashes` are those of its prefixes, in order."""
        return next((num * STRIDE for num in range(len(hashes), 0, -1) if hashes[num - 1] in self._hashes), 0)
