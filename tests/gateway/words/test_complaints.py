import json
from typing import Any

import pytest

from gateway.words.complaints import short


class Untouchable:
    """Fails whoever looks."""

    def __repr__(self) -> str:
        raise AssertionError("more was looked at than is shown")


@pytest.mark.parametrize("value", [None, True, 1.5, "a'b", [], {}, [[], {}], {"a": [1, {"b": None}]}, "x" * 78])
def test_a_short_value_is_shown_as_it_is(value: Any) -> None:
    assert short(value) == (repr(value) if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    "value", ["x" * 79, ["x" * 90, Untouchable()], [*range(40), Untouchable()], {"a" * 90: Untouchable()}, "\0" * 10**6]
)
def test_of_a_long_value_only_the_beginning_is_looked_at(value: Any) -> None:
    shown = short(value)
    assert len(shown) == 80 and shown.endswith("...")
