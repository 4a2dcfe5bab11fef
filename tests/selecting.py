"""Which cases of a table `make test` runs, which only `make test-slow`, and which only `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any], num_broad: int | None = None) -> list[Any]:
    """The first `count` of `values` as they are, then `num_broad` for `make test-slow`, and the others for `make
    test-full`; None: all others are broad. A tuple is the values of several parameters."""
    values = list(values)
    last = len(values) if num_broad is None else count + num_broad
    return [*values[:count], *map(broad, values[count:last]), *map(full, values[last:])]


def broad(value: Any) -> Any:
    """One case for `make test-slow`."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.broad)


def full(value: Any) -> Any:
    """One case for `make test-full`: what it combines is held by others, each part by itself."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full)
