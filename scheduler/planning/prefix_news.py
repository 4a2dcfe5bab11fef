"""What a worker tells the gateway of its cache: which prefixes came and went since the last message, as hashes.

The gateway uses it to choose workers only. So news may be bounded and may be lost; a wrong belief costs time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from math import lcm
from typing import Final

from protocol.prefixes import STRIDE, prefix_hashes
from protocol.worker_facts import MAX_CACHE_NEWS, CacheNews

MOST_WAITING: Final = 65_536  # hashes that wait to be told


class PrefixNews:
    """`key` is the gateway's; without one, nothing is told."""

    def __init__(self, page_size: int, key: bytes = b"") -> None:
        self.key = key
        self._page_size = page_size
        self._told_tokens = lcm(STRIDE, page_size)  # a prefix is told if it ends with a hash and with a page
        self._held: dict[int, bytes] = {}  # hash of the told prefix that ends with a page, by that page
        self._num_pages: Counter[bytes] = Counter()  # by hash; several if pages look ahead to different tokens
        self._waiting: dict[bytes, bool] = {}  # by hash: whether it came or went; the oldest first
        self._is_flushed = False

    def added(self, ids: bytes, salt: str, pages: Sequence[int], num_known: int) -> None:
        """The cache holds `ids` from now on: page i is pages[i]. It held the first `num_known` pages before."""
        if not self.key:
            return
        num_pages = self._told_tokens // self._page_size  # told together
        known = num_known // num_pages
        before = self._held[pages[known * num_pages - 1]] if known else b""
        hashes = prefix_hashes(self.key, salt, ids, known * self._told_tokens, before)
        num_hashes = self._told_tokens // STRIDE  # told together
        for number, prefix in enumerate(hashes[num_hashes - 1 :: num_hashes], known + 1):
            self._held[pages[number * num_pages - 1]] = prefix
            self._num_pages[prefix] += 1
            if self._num_pages[prefix] == 1:
                self._note(prefix, True)

    def dropped(self, pages: Iterable[int]) -> None:
        """The cache holds these pages no longer."""
        for page in pages:
            if (prefix := self._held.pop(page, None)) is not None:
                self._num_pages[prefix] -= 1
                if not self._num_pages[prefix]:
                    del self._num_pages[prefix]
                    self._note(prefix, False)

    def flushed(self) -> None:
        """The cache holds nothing."""
        self._held.clear()
        self._num_pages.clear()
        self._waiting.clear()
        self._is_flushed = True

    def tell_anew(self) -> None:
        """All that the cache holds is told again: the gateway may know nothing of it."""
        self._waiting = dict.fromkeys(islice(self._num_pages, MOST_WAITING), True)

    def take(self) -> CacheNews:
        """What is to be told next. The rest of what waits is told later."""
        told = list(islice(self._waiting.items(), MAX_CACHE_NEWS))
        for prefix, _ in told:
            del self._waiting[prefix]
        is_flushed, self._is_flushed = self._is_flushed, False
        came, went = ([prefix for prefix, is_held in told if is_held is wanted] for wanted in (True, False))
        return CacheNews(flushed=is_flushed, added=tuple(came), dropped=tuple(went))

    def _note(self, prefix: bytes, is_held: bool) -> None:
        if self._waiting.pop(prefix, is_held) is not is_held:
            return  # it came and went, or the other way round, before the gateway was told
        self._waiting[prefix] = is_held
        if len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
