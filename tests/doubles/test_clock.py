import pytest

from tests.doubles.clock import VirtualClock


def test_a_virtual_clock_moves_only_when_told() -> None:
    clock = VirtualClock(5.0)
    assert [clock.now(), clock.now()] == [5.0, 5.0]
    clock.advance(0.25)
    clock.advance(0)
    assert clock.now() == 5.25


def test_a_virtual_clock_does_not_go_back() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match=r"advance: got -1, expected at least 0"):
        clock.advance(-1)
    assert clock.now() == 0.0
