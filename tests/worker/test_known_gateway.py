"""Whether a worker may have missed a flush, by what each gateway tells it."""

import random

import pytest

from protocol.messages_gateway import RegisterAgain, Welcome
from worker.known_gateway import KnownGateway


@pytest.mark.parametrize("num_flushes", [0, 3])
def test_before_the_first_gateway_nothing_was_missed(num_flushes: int) -> None:
    known = KnownGateway()
    welcome = Welcome(7, num_flushes=num_flushes)
    assert not known.is_another(welcome) and not known.answered(welcome)
    assert not known.answered(welcome), "it was counted"


def test_another_gateway_may_have_flushed_and_is_noticed_once() -> None:
    known = KnownGateway()
    known.answered(Welcome(7))
    for first in (RegisterAgain(8), Welcome(9)):
        assert known.is_another(first) and known.answered(first)
        again = Welcome(first.gateway_instance)
        assert not known.is_another(again) and not known.answered(again)


@pytest.mark.parametrize("seed", range(20))
def test_a_flush_was_missed_exactly_if_one_came_while_the_worker_was_no_member(seed: int) -> None:
    """A gateway flushes, and loses and welcomes the worker, at random."""
    rng, known, num_flushes, is_member, has_missed = random.Random(seed), KnownGateway(), 0, False, False
    num_missed = 0
    known.answered(Welcome(7))
    for _ in range(200):
        if rng.random() < 0.5:
            num_flushes += 1
            if is_member:
                known.flushed()
            else:
                has_missed = True
        elif is_member:
            is_member = False
        else:
            assert known.answered(Welcome(7, num_flushes=num_flushes)) == has_missed
            num_missed += has_missed
            is_member, has_missed = True, False
    assert 0 < num_missed < 60
