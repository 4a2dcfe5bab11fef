"""The grammars of answers at an executor: it compiles them, and keeps the answers that follow them.

    LearnGrammar -> compiled, on a thread -> GrammarLearnt
    launch applied -> Masking (answers.py)
    MakeMask -> LateMasks (late_masks.py) -> MaskReady

An answer's state follows from its grammar and its tokens alone, so nothing of it is handed over: a row that joins
brings its outputs. Tokens of launches in flight follow when these are over. A row's new owner begins anew.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import GrammarFault
from runtime.clock import Clock, ThreadWorkClock
from runtime.grammars import CompiledGrammar, compile_grammar, library_error
from runtime.vocabulary import Vocabulary
from scheduler.execution.answers import Answer, KnownGrammar, Masking
from scheduler.execution.late_masks import LateMasks
from scheduler.plan import Draw, DropMask, ForgetGrammar, GrammarLearnt, LearnGrammar, MaskReady


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
class AnswerGrammars:
    """The grammars that the answers of one executor follow. `load` reads the vocabulary, when the first grammar is
    compiled. `compiling`, `masking` and `beside` run work on threads of their own; `wake` is called whenever some is
    over. `masking` has `num_threads`, which share the masks of a launch. `beside` makes those of late rows, and has
    `rest` let it rest for some seconds. `work` measures what each takes, on the thread that does it."""

    load: Callable[[], Vocabulary]
    compiling: Pool = field(default_factory=Inline)
    masking: Pool = field(default_factory=Inline)
    beside: Pool = field(default_factory=Inline)
    wake: Callable[[], None] = lambda: None
    num_threads: int = 1
    work: Clock = field(default_factory=ThreadWorkClock)
    rest: Callable[[float], object] = lambda _seconds: None

    def __post_init__(self) -> None:
        self._vocabulary: Vocabulary | None = None
        self._known: dict[str, KnownGrammar] = {}
        self._learning: list[tuple[str, Future[CompiledGrammar]]] = []
        self._answers: dict[int, tuple[int, dict[int, Answer]]] = {}  # by row: its owner number, and by choice
        self._newest: Masking | None = None
        self._late = LateMasks(self.beside, self.work, self.rest, self.wake)

    # ---- learning ----

    def learn(self, grammar: LearnGrammar) -> None:
        """Compiles a grammar on the thread for that."""
        future = self.compiling.submit(self._compile, grammar.text)
        self._learning.append((grammar.name, future))
        future.add_done_callback(lambda _: self.wake())

    def forget(self, grammar: ForgetGrammar) -> None:
        """Forgets a grammar. Answers that have begun go on."""
        self._known.pop(grammar.name, None)

    def learnt(self) -> list[GrammarLearnt]:
        """The grammars that were compiled, or could not be, since the last call."""
        over = [learning for learning in self._learning if learning[1].done()]
        for learning in over:
            self._learning.remove(learning)
        return [self._learnt(name, future) for name, future in over]

    def _learnt(self, name: str, future: "Future[CompiledGrammar]") -> GrammarLearnt:
        try:
            self._known[name] = KnownGrammar(future.result())
        except GrammarFault as fault:
            return GrammarLearnt(name, fault.message)
        return GrammarLearnt(name)

    def _compile(self, text: str) -> CompiledGrammar:
        try:
            if self._vocabulary is None:
                self._vocabulary = self.load()
            return compile_grammar(text, self._vocabulary)
        except GrammarFault:
            raise
        except BaseException as error:  # a panic is no Exception; a bug of the library fails this grammar's requests
            raise GrammarFault(f"the grammar cannot be compiled: {library_error(error)}") from error

    # ---- masks ----

    def apply(self, firsts: Sequence[Draw], rows: Sequence[Draw], begin: Iterable[Draw]) -> Masking | None:
        """What masks the launch that draws for `firsts`, at the ends of prompts, and for the `rows` that decode; None
        if no grammar rules any of them. `begin` are those that this plan names, with the outputs that are known."""
        for draw in begin:
            if draw.sampling.grammar:
                self._begin(draw)
        answers = {index: self._answer(draw) for index, draw in enumerate((*firsts, *rows)) if draw.sampling.grammar}
        if not answers:
            return None
        assert self._vocabulary is not None, "a grammar was compiled"
        num_words = self._vocabulary.num_words
        self._newest = Masking(answers, len(firsts), self._newest, self.work, num_words, self.num_threads)
        return self._newest

    def _begin(self, draw: Draw) -> None:
        """Makes the state of an answer, unless its row has it: then launches tell it the tokens."""
        owner_number, answers = self._answers.get(draw.row, (-1, {}))
        if owner_number != draw.owner_number:
            owner_number, answers = self._answers[draw.row] = draw.owner_number, {}
        if draw.choice not in answers:
            params, known = draw.sampling, self._known[draw.sampling.grammar]
            matching = known.compiled.begin(params.eos_token_ids, late=params.ignore_eos)
            answers[draw.choice] = Answer(known, matching, deque(draw.outputs))

    def _answer(self, draw: Draw) -> Answer:
        owner_number, answers = self._answers[draw.row]
        assert owner_number == draw.owner_number, f"row {draw.row} has an answer of owner {owner_number}"
        return answers[draw.choice]

    def start(self, masking: Masking) -> None:
        """Has the masks made, once the launch before is over."""
        masking.start(self.masking, self.wake)

    # ---- late rows ----

    def make_mask(self, draw: Draw) -> None:
        """Has the mask made of a row that is in no launch in flight, on the thread for that."""
        self._begin(draw)
        self._late.make((draw.row, draw.owner_number), draw.sampling.grammar, self._answer(draw))

    def drop_mask(self, row: DropMask) -> None:
        """Nobody waits for the mask of this row any more."""
        self._late.drop((row.row, row.owner_number))

    def made(self) -> list[MaskReady]:
        """The rows whose masks were made since the last call."""
        return self._late.made()

    def close(self) -> None:
        """Ends the threads."""
        self.beside.shutdown(wait=False, cancel_futures=True)
        self.compiling.shutdown(wait=False, cancel_futures=True)
        self.masking.shutdown(wait=False, cancel_futures=True)


def no_vocabulary() -> Vocabulary:
    """For an executor whose tokens have no bytes. Raises GrammarFault."""
    raise GrammarFault("this worker knows no bytes of its model's tokens, so it cannot follow a grammar")
