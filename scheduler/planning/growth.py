"""Pages for contexts that grow: which choices need some for the next token, and which give way when there are none.

    join --watch--> due in the launch whose token does not fit --grow_due--> grown, or short
                    ^------------------------------------------ grown ------'        |
                                                  short: sits out until pages are free, or it gives way

A choice that decodes writes one token a launch. So the launch in which its pages run out is known when it gets them,
and no other launch looks at it. With a draft a launch writes several tokens, and the host does not know how many of
them the launch in flight keeps. So a choice needs pages for two launches, and is watched for the soonest shortage.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from protocol.kv_layout import pages_for
from scheduler.planning.kv_book import KvBook
from scheduler.planning.req import Req

GROWTH_TOKENS: Final = 16  # taken at a time where pages are smaller; else every launch would change many page tables


class Growth:
    """Watches the choices that decode. A launch writes at most `width` tokens of each; 0: there is no draft."""

    def __init__(self, book: KvBook, width: int = 0) -> None:
        self.short: list[Req] = []  # those without a page for their next token, the longest waiting first
        self._book = book
        self._step, self._ahead = max(width, 1), max(2 * width, 1)
        self._num_launches = 0
        self._due: dict[int, list[Req]] = {}  # by the launch whose token does not fit

    def watch(self, req: Req) -> None:
        """It decodes in the next launch, if it has a page for that."""
        room = self._room(req)
        if room is not None:
            self._due.setdefault(self._num_launches + room, []).append(req)

    def launched(self) -> None:
        """A launch of the choices that decode was submitted."""
        self._num_launches += 1

    @property
    def is_waiting(self) -> bool:
        """Whether a choice needs a page. One that has ended since grow_due needs none."""
        return any(req.holding is not None for req in self.short)

    def grow_due(self) -> list[Req]:
        """Adds pages to the choices that need some for the next launch, and returns those that got them."""
        waiting = dict.fromkeys((*self.short, *self._due.pop(self._num_launches, ())))  # some are watched twice
        self.short = []
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
                self.short.append(req)
        return grown

    def victims(self, decoding: Iterable[Req]) -> list[Req]:
        """The choices that give way so that the short ones can go on; never all that decode and are short.

        Pages that come free anyway are waited for: those given back, and those of choices whose last output is in
        flight.
        """
        choices = (*decoding, *self.short)
        holders = {req: None for req in choices if req.holding and req.finish is None}
        candidates = [req for req in holders if req.num_left > 0]
        ending = [page for req in holders if req.num_left <= 0 for page in req.held.pages]
        missing = sum(self._num_missing(req) for req in self.short if req in holders)
        missing -= self._book.num_coming + self._book.pages.num_own(ending)
        return pick_victims(candidates, missing, self._book.pages.num_own, self._book.margin)

    def _num_missing(self, req: Req) -> int:
        """The pages without which it cannot decode."""
        num_tokens = min(req.num_written + self._ahead, req.longest)
        return pages_for(num_tokens, self._book.page_size) - len(req.held.pages)

    def _room(self, req: Req) -> int | None:
        """Launches for which it has pages; None: for all that it may have."""
        num_tokens = len(req.held.pages) * self._book.page_size
        if num_tokens >= req.longest:
            return None
        return max(0, (num_tokens - req.num_written - self._ahead) // self._step + 1)

    def _grow(self, req: Req) -> bool:
        """Takes a few pages at once, if there are as many."""
        sizes = (max(GROWTH_TOKENS, self._ahead), self._ahead)
        tokens = [min(req.num_written + size, req.longest) for size in sizes]
        return any(self._book.grow(req.held, num_tokens) is not None for num_tokens in tokens)


def pick_victims(
    candidates: Sequence[Req], missing: int, num_own: Callable[[Sequence[int]], int], margin: int
) -> list[Req]:
    """The choices that give way so that at least `missing` pages come free. `num_own`: how many of some pages no other
    choice holds.

    The last in priority first, then the fewest outputs, among equals the youngest; never the last one. One that began
    again, or came back from host memory, gives way only when nobody else is left, until it has run `margin` tokens.
    """

    def rank(place: int) -> tuple[bool, int, int, int]:
        req = candidates[place]
        has_run_margin = req.num_sampled - req.num_resumed >= margin
        return bool(req.num_resumed) and not has_run_margin, -req.priority, len(req.outputs), -place

    chosen: list[Req] = []
    for place in sorted(range(len(candidates)), key=rank)[:-1]:
        if missing <= 0:
            break
        chosen.append(candidates[place])
        missing -= num_own(candidates[place].held.pages)
    return chosen
