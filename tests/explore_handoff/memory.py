"""Page memory as the two ends of a transfer see it, with rules that each read and write must keep.

A sender shows only pages that it still owns, until the wire has read them. A receiver writes only into reserved pages.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from model.paged_kv import PagedKv
from protocol.kv_layout import KvLayout
from scheduler.planning.kv_pages import PageAllocator, PageState


class SourceMemory:
    """See transfer.interfaces.PageMemory. `held` is asked for once for each frame, right after its views were made."""

    def __init__(self, kv: PagedKv, pages: PageAllocator) -> None:
        self._kv = kv
        self._pages = pages
        self._shown: list[tuple[int, int]] = []  # (page, how often it had been handed out)
        self._times: Counter[int] = Counter()  # by page, how often it was handed out
        allocate = pages.allocate

        def counted(num: int, state: PageState = PageState.OWNED) -> list[int] | None:
            got = allocate(num, state)
            self._times.update(got or ())
            return got

        pages.allocate = counted  # type: ignore[method-assign]

    @property
    def layout(self) -> KvLayout:
        """See PageMemory."""
        return self._kv.layout

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """See PageMemory."""
        self._show(pages.tolist())
        return self._kv.window(layer, pages)

    def _show(self, pages: Sequence[int]) -> None:
        self._shown += [(page, self._times[page]) for page in pages]

    def held(self) -> Callable[[], None]:
        """A check that the pages of the views made last are still held for whoever held them."""
        shown, self._shown = self._shown, []
        pages = self._pages

        def check() -> None:
            for page, times in shown:
                assert self._times[page] == times, f"page {page} has a new owner and is still being sent"
                assert pages._state[page] is not PageState.FREE, f"page {page} is free and is still being sent"

        return check


class TargetMemory:
    """See transfer.interfaces.PageMemory."""

    def __init__(self, kv: PagedKv, pages: PageAllocator) -> None:
        self._kv = kv
        self._pages = pages

    @property
    def layout(self) -> KvLayout:
        """See PageMemory."""
        return self._kv.layout

    def window(self, layer: int, pages: npt.NDArray[np.int64]) -> memoryview:
        """See PageMemory."""
        self._check(pages.tolist())
        return self._kv.window(layer, pages)

    def _check(self, pages: Sequence[int]) -> None:
        for page in pages:
            state = self._pages._state[page]
            assert state is PageState.RESERVED, f"KV lands in page {page}, which is {state.name}"
