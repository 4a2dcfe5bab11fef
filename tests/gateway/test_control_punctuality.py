from gateway.control import LATE_S, MOST_LATE, Punctuality


def test_late_looks_blame_nobody_until_there_are_too_many_in_a_row() -> None:
    punctuality = Punctuality(100.0)
    assert punctuality.look(100.25) and punctuality.look(101.24)
    late = [punctuality.look(101.24 + number * LATE_S) for number in range(1, 2 * MOST_LATE + 1)]
    assert late == [*[False] * (MOST_LATE - 1), True] * 2
    assert not punctuality.look(200.0) and punctuality.look(200.25)
    assert not punctuality.look(300.0)
