"""The thread that makes the masks of late rows: whose turn it is, how long it lasts, and who is skipped."""

import random
from collections import deque
from collections.abc import Sequence

import pytest

from runtime.grammars import Matching, Words, compile_grammar
from scheduler.execution.answers import Answer, KnownGrammar
from scheduler.execution.late_masks import PIECE_S, SLICE_S, LateMasks
from scheduler.plan import MaskReady
from tests.doubles.clock import VirtualClock
from tests.doubles.held_pool import HeldPool
from tests.grammars import grammar_of, text_named, vocabulary

NUM_TOKENS, EOS, A = 100, 99, 1
MASK_S = 0.1


class Bench:
    """Late rows whose work takes what a test says, with slices that end when it says."""

    def __init__(self) -> None:
        self.work, self.pool = VirtualClock(), HeldPool()
        self.rests: list[tuple[float, float]] = []  # when the thread rested, in seconds of work, and for how long
        self.num_wakes = 0
        self.late = LateMasks(self.pool, self.work, self._rest, self._wake)
        compiled = compile_grammar(text_named(grammar_of([(A,) * 2000])), vocabulary(NUM_TOKENS))
        self.grammar = KnownGrammar(compiled)

    def _rest(self, seconds: float) -> None:
        self.rests.append((self.work.now(), seconds))

    def _wake(self) -> None:
        self.num_wakes += 1

    def answer(self, num_unread: int, read_s: float) -> Answer:
        work = self.work

        class Worked(Matching):
            def read(self, tokens: Sequence[int]) -> None:
                work.advance(read_s)
                super().read(tokens)

            def mask(self) -> Words:
                work.advance(0.0 if self.has_mask else MASK_S)
                return super().mask()

        matching = self.grammar.compiled.begin((EOS,))
        matching.__class__ = Worked
        return Answer(self.grammar, matching, deque([A] * num_unread), is_late=True)

    def make(self, row: int, num_unread: int = 1, read_s: float = 0.0, *, grammar: str = "g") -> Answer:
        answer = self.answer(num_unread, read_s)
        self.late.make((row, 1), grammar, answer)
        return answer

    def turns(self) -> list[int]:
        """The rows whose masks are made, in this order. No more than one slice is given at a time."""
        rows: list[int] = []
        while self.pool.held:
            assert len(self.pool.held) == 1
            self.pool.let_go()
            rows += [ready.row for ready in self.late.made()]
        return rows


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_mask_is_made_and_told_once(bench: Bench) -> None:
    one = bench.make(3)
    assert bench.late.made() == [] and one.is_late
    bench.pool.let_go()
    assert bench.num_wakes == 1 and one.is_late, "the scheduler thread does not know it yet"
    assert bench.late.made() == [MaskReady(3, 1)] and not one.is_late and not one.has_work
    assert bench.late.made() == [] and not bench.pool.held


def test_rows_of_one_grammar_do_not_hold_up_those_of_another(bench: Bench) -> None:
    for row in range(64):
        bench.make(row, grammar="hostile")
    for row in (70, 71):
        bench.make(row, grammar="good")
    assert bench.turns()[:5] == [0, 1, 70, 2, 71], "the first one ran before the others came"


def test_a_long_replay_does_not_hold_up_other_rows_of_its_grammar(bench: Bench) -> None:
    replay = bench.make(0, 1000, SLICE_S / 10)
    bench.make(1)
    bench.pool.let_go()
    assert bench.late.made() == [] and 985 <= len(replay.unread) <= 990
    assert bench.turns() == [1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_for_more_than_one_slice_of_each_other_grammar(seed: int) -> None:
    rng, bench = random.Random(seed), Bench()
    grammars = {row: rng.choice("abc") for row in range(rng.randrange(2, 9))}
    for row, grammar in grammars.items():
        bench.make(row, rng.choice((1, 1, 300)), rng.choice((0.0, SLICE_S / 7, SLICE_S * 2)), grammar=grammar)
    bench.make(99, grammar="mine")
    num_slices, told = 0, list[int]()
    while 99 not in told:
        bench.pool.let_go()
        num_slices += 1
        told += [ready.row for ready in bench.late.made()]
    assert num_slices <= len(set(grammars.values())) + 2, "its own, one of each other one, and the one that ran"
    assert sorted([*told, *bench.turns()]) == [*grammars, 99] and not bench.late.made()


@pytest.mark.parametrize("read_s", (PIECE_S / 100, PIECE_S / 3, PIECE_S * 35))
def test_the_thread_rests_behind_each_piece_as_long_as_the_piece_has_taken(read_s: float) -> None:
    bench = Bench()
    bench.make(0, 500, read_s)
    assert bench.turns() == [0]
    before_s, most_s = 0.0, max(read_s, PIECE_S + read_s)
    for at_s, rest_s in bench.rests:
        piece_s = min(at_s - before_s, rest_s)
        assert rest_s == pytest.approx(piece_s) and rest_s <= most_s * 1.001
        before_s = at_s
    assert sum(rest_s for _, rest_s in bench.rests) == pytest.approx(500 * read_s)


def test_a_slice_is_bounded(bench: Bench) -> None:
    bench.make(0, 100, SLICE_S / 3)
    bench.make(1, 100, SLICE_S * 2)
    longest_s = 0.0
    while bench.pool.held:
        before_s = bench.work.now()
        bench.pool.let_go()
        longest_s = max(longest_s, bench.work.now() - before_s)
        bench.late.made()
    assert longest_s <= SLICE_S + SLICE_S * 2 + MASK_S + 1e-9


@pytest.mark.parametrize("index", (0, 1, 2))
def test_a_row_that_is_dropped_takes_no_more_work(index: int, bench: Bench) -> None:
    answers = [bench.make(row, 1000, SLICE_S / 10, grammar="ab"[row % 2]) for row in range(3)]
    bench.pool.let_go()
    bench.late.made()
    bench.late.drop((index, 1))
    if index == 1:  # its slice has been given to the thread, and is for nobody
        assert len(answers[1].unread) == 1000
        bench.pool.let_go()
        assert bench.late.made() == []
    num_left = len(answers[index].unread)
    assert sorted(bench.turns()) == [row for row in range(3) if row != index]
    assert len(answers[index].unread) == num_left > 0 and not bench.late.made()


def test_only_the_owner_who_left_is_dropped(bench: Bench) -> None:
    bench.make(0)
    bench.make(1)
    bench.late.drop((1, 2))
    bench.late.drop((0, 2))
    bench.late.drop((5, 1))
    assert bench.turns() == [0, 1]


def test_a_mask_that_is_made_when_its_row_is_dropped_is_for_nobody(bench: Bench) -> None:
    bench.make(0)
    bench.pool.let_go()
    bench.late.drop((0, 1))
    assert bench.late.made() == []
    bench.make(0)
    assert bench.turns() == [0]
