"""Pages for contexts that grow: which choices need some for the next token, and which are preempted for lack of pages.

    join --watch--> due in the launch whose token does not fit --grow_due--> grown, or out of pages
                    ^------------------------------------------ grown ------'        |
                               out of pages: sits out until pages are free, or until it is preempted

A choice that decodes writes one token a launch. So the launch in which its pages run out is known when it gets them,
and no other launch looks at it. With a draft a launch writes several tokens, and the host does not know how many of
them the launch in flight keeps. So a choice needs pages for two launches, and is watched for the soonest shortage. One
without the draft's KV keeps one token of a launch, whatever that writes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from protocol.kv_layout import pages_for
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.req import Req

GROWTH_TOKENS: Final = 16  # taken at a time where pages are smaller; else every launch would change many page tables


class Growth:
    """Watches the choices that decode. A launch writes at most `width` tokens of each; 0: there is no draft."""

    def __init__(self, kv_manager: KvManager, width: int = 0) -> None:
        self.out_of_pages: list[Req] = []  # those without a page for their next token, the longest waiting first
        self._kv_manager = kv_manager
        self._step, self._ahead = max(width, 1), max(2 * width, 1)
        self._num_launches = 0
        self._due: dict[int, list[Req]] = {}  # by the launch whose token does not fit

    def watch(self, req: Req) -> None:
        """Watches `req` until its pages run out."""
        room = self._room(req)
        if room is not None:
            self._due.setdefault(self._num_launches + room, []).append(req)

    def launched(self) -> None:
        """A launch of the choices that decode was submitted."""
        self._num_launches += 1

    @property
    def is_waiting(self) -> bool:
        """Whether a choice needs a page. One that has ended since grow_due needs none."""
        return any(req.holding is not None for req in self.out_of_pages)

    def grow_due(self) -> list[Req]:
        """Adds pages to the choices that need some for the next launch, and returns those that got them."""
        waiting = dict.fromkeys((*self.out_of_pages, *self._due.pop(self._num_launches, ())))  # some are watched twice
        self.out_of_pages = []
        grown: list[Req] = []
        for req in waiting:
            if req.holding is None or req.finish is not None or req.num_left <= 0:
                continue
            if self._room(req) != 0:  # launches have drawn fewer tokens than they might
                self.watch(req)
            elif self._grow(req):
                self.watch(req)
                grown.append(req)
            else:
                self.out_of_pages.append(req)
        return grown

    def to_preempt(self, decoding: Iterable[Req]) -> list[Req]:
        """The choices to preempt so that those out of pages can go on. At least one choice stays.

        Pages that come free anyway are waited for: those given back, and those of choices whose last output is in
        flight.
        """
        choices = (*decoding, *self.out_of_pages)
        holders = {req: None for req in choices if req.holding and req.finish is None}
        candidates = [req for req in holders if req.num_left > 0]
        ending = [page for req in holders if req.num_left <= 0 for page in req.held.pages]
        missing = sum(self._num_missing(req) for req in self.out_of_pages if req in holders)
        missing -= self._kv_manager.num_coming + self._kv_manager.pages.num_own(ending)
        return pick_preempted(candidates, missing, self._kv_manager.pages.num_own, self._kv_manager.margin)

    def _num_missing(self, req: Req) -> int:
        """The pages without which it cannot decode."""
        num_tokens = min(req.num_written + self._ahead, req.longest)
        return pages_for(num_tokens, self._kv_manager.page_size) - len(req.held.pages)

    def _room(self, req: Req) -> int | None:
        """Launches for which it has pages; None: for all that it may have."""
        num_tokens = len(req.held.pages) * self._kv_manager.page_size
        if num_tokens >= req.longest:
            return None
        step = self._step if req.held.has_draft else 1
        return max(0, (num_tokens - req.num_written - self._ahead) // step + 1)

    def _grow(self, req: Req) -> bool:
        """Takes a few pages at once, if there are as many."""
        sizes = (max(GROWTH_TOKENS, self._ahead), self._ahead)
        tokens = [min(req.num_written + size, req.longest) for size in sizes]
        return any(self._kv_manager.grow(req.held, num_tokens) is not None for num_tokens in tokens)


def pick_preempted(
    candidates: Sequence[Req], missing: int, num_own: Callable[[Sequence[int]], int], margin: int
) -> list[Req]:
    """The choices to preempt so that at least `missing` pages come free. `num_own`: how many of some pages no other
    choice holds.

    The last in priority first, then the fewest outputs, among equals the youngest; never the last one. One that has
    resumed is preempted only when no other is left, until it has run `margin` tokens.
    """

    def rank(index: int) -> tuple[bool, int, int, int]:
        req = candidates[index]
        has_run_margin = req.num_sampled - req.num_resumed >= margin
        return bool(req.num_resumed) and not has_run_margin, -req.priority, len(req.outputs), -index

    chosen: list[Req] = []
    for index in sorted(range(len(candidates)), key=rank)[:-1]:
        if missing <= 0:
            break
        chosen.append(candidates[index])
        missing -= num_own(candidates[index].held.pages)
    return chosen
