from worker.missed import Missed


def test_nothing_is_missed_of_a_gateway_that_began_to_count_later() -> None:
    for first in (0, 5):
        missed = Missed()
        for number in (7, 8, 12):
            missed.numbered(number, number + first)
        assert missed.total == 0


def test_what_was_lost_before_the_first_number_came_is_missed_too() -> None:
    """The first Welcome was lost, and an Assign with it."""
    missed = Missed()
    missed.numbered(3, 1)
    assert missed.total == 2


def test_what_was_sent_between_two_numbers_and_has_not_come_is_missed() -> None:
    missed = Missed()
    missed.numbered(4, 9)
    missed.numbered(8, 12)  # four were sent, three came
    assert missed.total == 1
    missed.numbered(9, 13)  # it stays missing
    missed.numbered(14, 16)
    assert missed.total == 3


def test_who_begins_to_count_anew_has_lost_nothing() -> None:
    missed = Missed()
    missed.numbered(40, 40)
    missed.numbered(2, 41)
    missed.numbered(3, 42)
    assert missed.total == 0
