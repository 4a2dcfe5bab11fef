"""One small group of each kind is measured, with real processes."""

import pytest

from bench.ranks.__main__ import group, measure
from bench.ranks.rank import Order
from protocol.messages_group import GroupPlace


def test_an_order_passes_through_a_command_line() -> None:
    """The place passes, too."""
    order = Order("serve", GroupPlace("bench", 1, 2, 4), "/folder", 9, model="real", batch=3, all_busy=True)
    assert Order.from_json(order.to_json()) == order


def test_sides_take_turns() -> None:
    """Every second round begins with the other side."""
    said: list[str] = []

    def side(name: str) -> float:
        said.append(name)
        return float(len(said))

    found = measure({"a": lambda: side("a"), "b": lambda: side("b")}, 3)
    assert said == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}


@pytest.mark.slow
@pytest.mark.parametrize("what, size", [("gather", 2), ("agree", 2), ("serve", 2), ("serve", 1)])
def test_each_kind_of_group_is_measured(what: str, size: int) -> None:
    """In seconds."""
    found = group(what, size, 5)
    assert found.get("median_s", found.get("step_s", 0.0)) > 0
