"""Sides take turns."""

from bench.turns import in_turn


def test_each_side_begins_as_often() -> None:
    """Rounds before the first one warm up."""
    rounds = ["".join(in_turn(sides, number)) for sides in ("ab", {"c": 1, "d": 2, "e": 3}) for number in range(-1, 3)]
    assert rounds == ["ba", "ab", "ba", "ab", "edc", "cde", "edc", "cde"]
