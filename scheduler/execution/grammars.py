"""The grammars of answers at an executor: it compiles them, reads what launches draw, and makes the masks of the next.

    LearnGrammar -> compiled, on a thread -> GrammarLearnt
    launch applied -> Masking: waits until the launch before is over -> a thread makes masks -> the launch samples

An answer's state follows from its grammar and its tokens alone, so nothing of it is handed over: a row that joins
brings its outputs. Tokens of launches in flight follow when these are over. A row's new owner begins anew.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from llguidance import LLExecutor

from model.inputs import int64_column
from model.sampler import AllowedTokens
from protocol.errors import GrammarFault
from runtime.grammars import CompiledGrammar, Matching, Words, compile_grammar, fill_masks
from runtime.vocabulary import Vocabulary
from scheduler.plan import Draw, ForgetGrammar, GrammarLearnt, LearnGrammar

NOTHING_FITS: Final = (
    "the grammar allows no token here that min_tokens, allowed_token_ids, bad_words and stop_token_ids allow, too"
)


class Inline(Pool):
    """Runs what it is given at once, on the caller's thread: for an executor without threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """A future that is over."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as in a thread: `result` raises it
            future.set_exception(error)
        return future


@dataclass(eq=False)
class Answer:
    """One choice's answer at a row. `unread` are outputs that its matching has not read."""

    matching: Matching
    unread: list[int]


@dataclass(eq=False)
class Masking:
    """The masks of one launch. `answers`, by their places among the draws: those of chunks first, then the rows that
    decode. Its fields change on the scheduler thread; only `_make` runs on another one, while no field changes."""

    answers: dict[int, Answer]
    before: "Masking | None"  # of an earlier launch, unless that is over
    make: Callable[[Sequence[Matching]], Words]
    is_over: bool = False  # its launch is, and the answers have the tokens
    _future: "Future[Words] | None" = None

    def start(self, pool: Pool, wake: Callable[[], None]) -> None:
        """Makes the masks as soon as all tokens before them are known."""
        if self._future is None and (self.before is None or self.before.is_over):
            self.before = None
            self._future = pool.submit(self._make)
            self._future.add_done_callback(lambda _: wake())

    @property
    def is_done(self) -> bool:
        """Whether the masks are there."""
        return self._future is not None and self._future.done()

    def allowed(self, index_of: Callable[[int], int], device: torch.device) -> AllowedTokens:
        """The masks, for the sampler. `index_of` a place: the index of its row of logits."""
        assert self._future is not None, "the masks are not being made"
        words_NW = torch.from_numpy(self._future.result()).to(device, non_blocking=True)
        return AllowedTokens(int64_column([index_of(place) for place in self.answers], device), words_NW)

    def why_stuck(self, place: int) -> str:
        """Why the row at `place` has drawn no token although its logits are finite; "" if it has no grammar."""
        answer = self.answers.get(place)
        return "" if answer is None else answer.matching.fault or NOTHING_FITS

    def over(self, runs: Sequence[Sequence[int]]) -> None:
        """Its launch is over and has drawn `runs`, by place; none if it has failed."""
        self.is_over = True
        for place, answer in self.answers.items() if runs else ():
            answer.unread += [token for token in runs[place] if token >= 0]

    def _make(self) -> Words:
        for answer in self.answers.values():
            answer.matching.read(answer.unread)
            answer.unread.clear()
        return self.make([answer.matching for answer in self.answers.values()])


@dataclass(eq=False)
class AnswerGrammars:
    """The grammars that the answers of one executor follow. `load` reads the vocabulary, when the first grammar is
    compiled. `compiling` and `masking` run work on threads of their own; `wake` is called whenever some is over. The
    library makes the masks of one launch with `num_threads`."""

    load: Callable[[], Vocabulary]
    compiling: Pool = field(default_factory=Inline)
    masking: Pool = field(default_factory=Inline)
    wake: Callable[[], None] = lambda: None
    num_threads: int = 1

    def __post_init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._threads: LLExecutor | None = None
        self._compiled: dict[str, CompiledGrammar] = {}
        self._learning: list[tuple[str, Future[CompiledGrammar]]] = []
        self._answers: dict[int, tuple[int, dict[int, Answer]]] = {}  # by row: its owner's generation, and by choice
        self._newest: Masking | None = None

    # ---- learning ----

    def learn(self, grammar: LearnGrammar) -> None:
        """Compiles a grammar on the thread for that."""
        future = self.compiling.submit(self._compile, grammar.text)
        self._learning.append((grammar.name, future))
        future.add_done_callback(lambda _: self.wake())

    def forget(self, grammar: ForgetGrammar) -> None:
        """Forgets a grammar. Answers that have begun go on."""
        self._compiled.pop(grammar.name, None)

    def learnt(self) -> list[GrammarLearnt]:
        """The grammars that were compiled, or could not be, since the last call."""
        over = [each for each in self._learning if each[1].done()]
        for each in over:
            self._learning.remove(each)
        return [self._learnt(name, future) for name, future in over]

    def _learnt(self, name: str, future: "Future[CompiledGrammar]") -> GrammarLearnt:
        try:
            self._compiled[name] = future.result()
        except GrammarFault as fault:
            return GrammarLearnt(name, fault.message)
        except Exception as error:  # noqa: BLE001 - the library's own bug with this grammar fails its requests alone
            return GrammarLearnt(name, f"the grammar cannot be compiled: {type(error).__name__}")
        return GrammarLearnt(name)

    def _compile(self, text: str) -> CompiledGrammar:
        if self._vocabulary is None:
            self._vocabulary = self.load()
            self._threads = LLExecutor(self.num_threads)
        return compile_grammar(text, self._vocabulary)

    # ---- masks ----

    def apply(self, draws: Iterable[Draw], begin: Iterable[Draw]) -> Masking | None:
        """What masks the launch that draws for `draws`; None if no grammar rules any of them. `begin` are those of them
        that this plan names, with the outputs that are known."""
        for draw in begin:
            if draw.sampling.grammar:
                self._begin(draw)
        answers = {place: self._answer(draw) for place, draw in enumerate(draws) if draw.sampling.grammar}
        if not answers:
            return None
        self._newest = Masking(answers, self._newest, self._make)
        return self._newest

    def _begin(self, draw: Draw) -> None:
        """Makes the state of an answer, unless its row has it: then launches tell it the tokens."""
        generation, answers = self._answers.get(draw.row, (-1, {}))
        if generation != draw.generation:
            generation, answers = self._answers[draw.row] = draw.generation, {}
        if draw.choice not in answers:
            params = draw.sampling
            matching = self._compiled[params.grammar].begin(params.eos_token_ids, late=params.ignore_eos)
            answers[draw.choice] = Answer(matching, list(draw.outputs))

    def _answer(self, draw: Draw) -> Answer:
        generation, answers = self._answers[draw.row]
        assert generation == draw.generation, f"row {draw.row} has an answer of owner {generation}"
        return answers[draw.choice]

    def _make(self, matchings: Sequence[Matching]) -> Words:
        assert self._vocabulary is not None and self._threads is not None, "a grammar was compiled"
        return fill_masks(matchings, self._vocabulary, self._threads)

    def start(self, masking: Masking) -> None:
        """Has the masks made, once the launch before is over."""
        masking.start(self.masking, self.wake)

    def close(self) -> None:
        """Ends the threads."""
        self.compiling.shutdown(wait=False, cancel_futures=True)
        self.masking.shutdown(wait=False, cancel_futures=True)


def no_vocabulary() -> Vocabulary:
    """For an executor whose tokens have no bytes. Raises GrammarFault."""
    raise GrammarFault("this worker knows no bytes of its model's tokens, so it cannot follow a grammar")
