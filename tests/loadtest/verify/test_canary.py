"""Whose text an answer holds."""

from hypothesis import given
from hypothesis import strategies as st

from loadtest.verify.canary import RUN, Canary

NEEDLES = [tuple(range(100 * number, 100 * number + RUN)) for number in (1, 2, 3)]
ANSWERS = [tuple(range(1000 * number, 1000 * number + 20)) for number in (1, 2, 3)]


def canary() -> Canary:
    made = Canary()
    for number in range(3):
        made.add(number, NEEDLES[number], ANSWERS[number])
    return made


@given(st.lists(st.integers(5, 99), max_size=9), st.lists(st.integers(5, 99), max_size=9), st.sampled_from([1, 2]))
def test_a_needle_of_another_is_found_wherever_it_is(before: list[int], behind: list[int], other: int) -> None:
    assert (
        canary().owner([*before, *NEEDLES[other], *behind], 0, is_wrong=False)
        == f"it holds the needle of request {other}"
    )
    assert canary().owner([*before, *NEEDLES[0], *behind], 0, is_wrong=True) == ""
    assert canary().owner([*before, *NEEDLES[other][1:], *behind], 0, is_wrong=False) == ""


@given(st.integers(0, 12), st.integers(8, 20))
def test_a_part_of_the_answer_to_another_counts_for_a_wrong_answer(start: int, length: int) -> None:
    part = ANSWERS[2][start : start + length]
    assert canary().owner([7, *part], 0, is_wrong=True) == (
        "it holds a part of the answer to request 2" if len(part) >= RUN else ""
    )
    assert canary().owner([7, *part], 0, is_wrong=False) == ""
    assert canary().owner([7, *part], 2, is_wrong=True) == ""


def test_a_short_answer_must_be_whole() -> None:
    assert canary().owner(ANSWERS[1][3:8], 0, is_wrong=True) and not canary().owner(ANSWERS[1][3:6], 0, is_wrong=True)


def test_what_all_requests_say_is_nobodys() -> None:
    canary = Canary()
    canary.add(0, NEEDLES[0], ANSWERS[0])
    canary.add(1, NEEDLES[1], ANSWERS[0])
    assert canary.owner([7, *ANSWERS[0]], 0, is_wrong=True) == ""
