"""One small group of each kind is measured, with real processes."""

import pytest

from bench.step.rank import Order
from bench.step.ranks import group
from protocol.messages_group import GroupPlace


def test_an_order_passes_through_a_command_line() -> None:
    """The place passes, too."""
    order = Order("serve", GroupPlace("bench", 1, 2, 4), "/folder", 9, model="real", batch=3, all_busy=True)
    assert Order.from_json(order.to_json()) == order


@pytest.mark.slow
@pytest.mark.parametrize("what, size", [("agree", 2), ("serve", 2), ("serve", 1)])
def test_each_kind_of_group_is_measured(what: str, size: int) -> None:
    """In seconds."""
    seconds = group(what, size, 5)
    assert seconds["seconds"] > 0
