"""The generated text is the one that the weights were trained on: a digest of it says so, whatever is in it."""

import hashlib
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from models.train import arithmetic, corpus

SEEDS = st.integers(0, 2**32)


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def test_text_is_the_one_the_weights_were_trained_on() -> None:
    assert digest(corpus.sample(20, 300)) == "151be4d3c9acb519cafaef77d938c58be8253cc617d003a8b775461f16081698"


@given(SEEDS)
def test_sums_are_right_and_never_held_out(seed: int) -> None:
    drawn = arithmetic.draw_sum(Random(seed))
    assert (
        drawn.result
        == {
            "+": drawn.left + drawn.right,
            "-": drawn.left - drawn.right,
            "x": drawn.left * drawn.right,
        }[drawn.op]
    )
    assert drawn.result >= 0
    assert drawn.op != "+" or not arithmetic.is_held_out(drawn.left, drawn.right)


def test_held_out_sums_are_a_tenth_of_the_larger_ones_in_both_orders() -> None:
    held_out = arithmetic.held_out_sums()
    pairs = {(held.left, held.right) for held in held_out}
    assert pairs == {(right, left) for left, right in pairs}
    assert all(max(pair) >= 10 for pair in pairs)
    assert 25 <= len(held_out) <= 60
