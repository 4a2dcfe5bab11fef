from enum import Enum

import pytest

from runtime.state_table import advance


class Light(Enum):
    """Two states."""

    OFF = 0
    ON = 1


def test_the_table_decides() -> None:
    table = {Light.OFF: frozenset({Light.ON}), Light.ON: frozenset[Light]()}
    assert advance(table, Light.OFF, Light.ON) is Light.ON
    with pytest.raises(AssertionError, match="illegal move ON -> OFF"):
        advance(table, Light.ON, Light.OFF)
    with pytest.raises(AssertionError, match="illegal move OFF -> OFF"):
        advance(table, Light.OFF, Light.OFF)
