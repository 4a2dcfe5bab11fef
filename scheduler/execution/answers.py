"""One answer in a grammar, and the masks of one launch: which are made within it, and which rows are late.

    launch applied -> Masking: the launch before is over -> threads read tokens and make masks -> the launch samples
    an answer whose mask would hold the others up is late: it draws no token in this launch
    late -> no launch in flight has its row -> MakeMask: a thread of low priority makes it -> MaskReady

Work is processor time of the thread that does it, so it is the same on a busy machine.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from model.inputs import int64_column
from model.sampling_input import AllowedTokens
from runtime.clock import Clock
from runtime.grammars import CompiledGrammar, Matching, Words, library_error

# What an answer may take: some ten times as much as those of large schemas do with 128,000 tokens.
BASE_S: Final = 2.0
PER_TOKEN_S: Final = 0.01
# What the masks of a launch may take on one thread.
LAUNCH_S: Final = 0.01
QUICK_S: Final = 0.0005  # an answer that took no more the last time may come behind that
MOST_S: Final = 0.1  # but not behind this
FORGET: Final = 0.5 ** (1 / 256)  # of what a grammar has taken at most, with each later mask: half after 256 of them
NOTHING_FITS: Final = (
    "the grammar allows no token here that min_tokens, allowed_token_ids, bad_words and stop_token_ids allow, too"
)


@dataclass(eq=False)
class KnownGrammar:
    """A grammar that was compiled, with what is known of its masks. `slowest_s`: the most work that the mask of one
    token has taken. It falls with each quicker mask, because one may be slow only once."""

    compiled: CompiledGrammar
    slowest_s: float = 0.0

    def note(self, took_s: float) -> None:
        """The mask of one token has taken this work."""
        self.slowest_s = max(took_s, self.slowest_s * FORGET)


@dataclass(eq=False)
class Answer:
    """One choice's answer at a row. `unread` are outputs that its matching has not read: at first those with which it
    begins, which an earlier attempt has drawn. What these take does not count. A new answer is as slow as its grammar
    has been."""

    grammar: KnownGrammar
    matching: Matching
    unread: deque[int]
    is_late: bool = False  # it draws nothing until MakeMask has made its mask
    last_s: float = field(init=False)  # the work of its last mask, with that of reading one output before it
    _reads_s: float = 0.0  # since its last mask
    _num_reads: int = 0  # since then
    _spent_s: float = 0.0
    _num_drawn: int = 0
    _has_begun: bool = False
    _has_news: bool = False  # its last mask is not noted in the grammar

    def __post_init__(self) -> None:
        self.last_s = self.grammar.slowest_s

    @property
    def has_work(self) -> bool:
        """Whether `mask` takes work."""
        return bool(self.unread) or not self.matching.has_mask

    def fits(self, spent_s: float) -> bool:
        """Whether its mask is made within a launch whose masks have taken `spent_s` on this thread. It is not if
        several outputs are unread: an earlier attempt has drawn them, and nothing bounds how many."""
        if self.is_late:
            return False
        if not self.has_work:
            return True
        if len(self.unread) > 1:
            return False
        return spent_s + self.last_s <= LAUNCH_S or (self.last_s <= QUICK_S and spent_s <= MOST_S)

    def read(self, work: Clock, most_s: float) -> float:
        """Reads what is unread, up to the output with which `most_s` of work are spent. Returns the work."""
        start, spent_s = work.now(), 0.0
        while self.unread and spent_s < most_s:
            token, before_s = self.unread.popleft(), spent_s
            self._guarded(self.matching.read, (token,))
            spent_s = work.now() - start
            self._reads_s += spent_s - before_s
            self._num_reads += 1
            if self._has_begun:
                self._num_drawn += 1
                self._spend(spent_s - before_s)
        return spent_s

    def mask(self, work: Clock) -> Words:
        """Reads what is unread, and makes the mask. An answer that has taken more work than it may gets a fault."""
        if self.unread:
            self.read(work, float("inf"))
        if not self.matching.has_mask:
            start = work.now()
            self._guarded(self.matching.mask)
            took_s = work.now() - start
            self.last_s = took_s + self._reads_s / max(1, self._num_reads)
            self._reads_s, self._num_reads, self._has_news = 0.0, 0, True
            if self._has_begun:
                self._spend(took_s)
        self._has_begun = True
        return self.matching.mask()

    def tell_grammar(self) -> None:
        """Notes in the grammar what the last mask has taken, once. Answers share it, so only one thread calls this."""
        if self._has_news:
            self.grammar.note(self.last_s)
            self._has_news = False

    def _guarded(self, call: Callable[..., object], *args: object) -> None:
        """Calls the library. Its own bug with this grammar fails this answer alone."""
        try:
            call(*args)
        except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception
            self.matching.fault = f"its mask cannot be made: {library_error(error)}"

    def _spend(self, took_s: float) -> None:
        self._spent_s += took_s
        allowed_s = BASE_S + PER_TOKEN_S * self._num_drawn
        if self._spent_s > allowed_s:
            took, may = f"{self._spent_s:.1f} s of work for {self._num_drawn} tokens", f"{allowed_s:.1f} s"
            fault = f"the grammar takes too much work: {took}, expected at most {may}"
            self.matching.fault = self.matching.fault or fault


@dataclass(eq=False)
class Masking:
    """The masks of one launch. `answers`, by their places among the draws: those of chunks first, then the rows that
    decode, from place `first_row` on. Its fields change on the scheduler thread; only `_make` runs on others, while no
    field changes but `late` and `masks_NW`."""

    answers: dict[int, Answer]
    first_row: int
    before: "Masking | None"  # of an earlier launch, unless that is over
    work: Clock
    num_words: int
    num_threads: int
    is_over: bool = False  # its launch is, and the answers have the tokens
    late: set[int] = field(default_factory=set)  # the places that draw no token, because their masks would be late
    _futures: "list[Future[None]]" = field(default_factory=list)

    def start(self, pool: Pool, wake: Callable[[], None]) -> None:
        """Makes the masks as soon as all tokens before them are known."""
        if not self._futures and (self.before is None or self.before.is_over):
            self.before = None
            self.masks_NW = np.zeros((len(self.answers), self.num_words), dtype=np.int32)
            for places in self._slices():
                future = pool.submit(self._make, places)
                self._futures.append(future)
                future.add_done_callback(lambda _: wake())

    @property
    def is_done(self) -> bool:
        """Whether the masks are there."""
        return bool(self._futures) and all(future.done() for future in self._futures)

    def allowed(self, index_of: Callable[[int], int], device: torch.device) -> AllowedTokens:
        """The masks, for the sampler. `index_of` a place: the index of its row of logits."""
        assert self._futures, "the masks are not being made"
        for future in self._futures:
            future.result()
        words_NW = torch.from_numpy(self.masks_NW).to(device, non_blocking=True)
        return AllowedTokens(int64_column([index_of(index) for index in self.answers], device), words_NW)

    def why_stuck(self, index: int) -> str:
        """Why the row at `index` has drawn no token although its logits are finite; "" if it has no grammar."""
        answer = self.answers.get(index)
        return "" if answer is None else answer.matching.fault or NOTHING_FITS

    def over(self, runs: Sequence[Sequence[int]]) -> None:
        """Its launch is over and has drawn `runs`, by place; none if it has failed."""
        self.is_over = True
        for answer in self.answers.values():
            answer.tell_grammar()
        for index, answer in self.answers.items() if runs else ():
            answer.unread += [token for token in runs[index] if token >= 0]

    def _slices(self) -> Iterator[list[tuple[int, int]]]:
        """For each thread: (index of the mask, place) of its answers. Those that took the least work come first."""
        numbered = sorted(enumerate(self.answers), key=lambda entry: self.answers[entry[1]].last_s)
        num = min(self.num_threads, len(numbered))
        return (numbered[thread::num] for thread in range(num))

    def _make(self, places: Sequence[tuple[int, int]]) -> None:
        """Makes the masks of some answers. A first token is never late: its chunk is launched when it has no work."""
        spent_s = 0.0
        for index, draw_index in places:
            answer = self.answers[draw_index]
            if draw_index < self.first_row or answer.fits(spent_s):
                has_work = answer.has_work
                self.masks_NW[index] = answer.mask(self.work)
                spent_s += answer.last_s if has_work else 0.0
            else:
                answer.is_late = True
                self.late.add(draw_index)
