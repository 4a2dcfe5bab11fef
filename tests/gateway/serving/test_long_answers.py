"""What long answers hold together, and which of them give way."""

import asyncio
import random
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from gateway.serving.long_answers import STALLED_S, Held, LongAnswers, to_cut
from gateway.serving.parts import PART_BYTES
from protocol.errors import Overloaded
from tests.doubles.clock import VirtualClock


def held(num_bytes: int, sends_since: float | None) -> Held:
    return Held(lambda: None, num_bytes, sends_since)


def test_of_stalled_answers_the_largest_are_cut_until_there_is_room() -> None:
    small, large, sends, writes = held(10, 0.0), held(30, 4.0), held(90, 4.5), held(500, None)
    answers, now = {small, large, sends, writes}, 5.0
    assert now - STALLED_S == 4.0
    assert to_cut(answers, 1, now) == [large] and to_cut(answers, 30, now) == [large]
    assert to_cut(answers, 31, now) == [large, small] and to_cut(answers, 1000, now) == [large, small]


def test_no_answer_is_cut_without_need_and_none_is_forgotten() -> None:
    """Random lives of answers: what they hold together stays within the bound, and is nothing at the end."""
    rng, num_cut, num_refused = random.Random(4), 0, 0
    for _ in range(200):
        clock, cut = VirtualClock(), list[int]()
        answers = LongAnswers(100, clock)
        lives = [answers.holding(partial(cut.append, number)) for number in range(5)]
        own = [each.__enter__() for each in lives]
        gone: set[int] = set()
        for _ in range(40):
            number, size = rng.randrange(5), rng.randrange(120)
            if number in gone:
                continue
            if rng.random() < 0.3:
                own[number].sends_since = rng.choice((None, clock.now()))
                clock.advance(rng.choice((0.2, 0.9)))
                continue
            stalled = [n for n in range(5) if n not in gone and is_stalled(own[n], clock)]
            would_be = answers.num_bytes - own[number].num_bytes + size
            before = len(cut)
            try:
                answers.resize(own[number], size)
            except Overloaded:
                assert size <= 100 or would_be > 100
                num_refused += 1
                gone.add(number)
            assert set(cut[before:]) <= set(stalled)
            assert would_be > 100 or not cut[before:]
            gone |= set(cut)
            assert answers.num_bytes == sum(each.num_bytes for n, each in enumerate(own) if n not in gone) <= 100
        num_cut += len(cut)
        for each in lives:
            each.__exit__(None, None, None)
        assert answers.num_bytes == 0
    assert num_cut > 20 and num_refused > 20


def is_stalled(each: Held, clock: VirtualClock) -> bool:
    return each.sends_since is not None and clock.now() - each.sends_since >= STALLED_S


def test_an_answer_that_holds_nothing_is_never_cut() -> None:
    clock = VirtualClock()
    answers = LongAnswers(10, clock)
    with answers.holding(lambda: None) as small, answers.sending(small):
        assert small.sends_since is None
    with answers.holding(lambda: None) as large:
        answers.resize(large, 5)
        with answers.sending(large):
            assert large.sends_since == clock.now()
        assert large.sends_since is None


async def test_parts_of_all_answers_are_encoded_one_at_a_time_and_in_turn() -> None:
    """Not on the loop's thread."""
    answers, order, loop = LongAnswers(), list[int](), threading.get_ident()

    def blocks(number: int) -> Iterator[bytes]:
        for _ in range(5):
            assert answers._one_part.locked() and threading.get_ident() != loop
            order.append(number)
            yield b"x" * PART_BYTES

    async def read(number: int) -> int:
        own, num_parts = blocks(number), 0
        while await answers.next_part(own):
            num_parts += 1
        return num_parts

    assert await asyncio.gather(*map(read, range(3))) == [5, 5, 5]
    assert order == [0, 1, 2] * 5


async def test_a_refusal_says_what_to_do() -> None:
    answers = LongAnswers(10)
    with answers.holding(lambda: None) as one, pytest.raises(Overloaded, match="hold more than 10 bytes; try again"):
        answers.resize(one, 11)
    assert answers.num_bytes == 0
