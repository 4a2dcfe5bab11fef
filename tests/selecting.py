"""Which cases of a table `make test` runs, which only `make test-slow`, and which only `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """The first `count` of `values` as they are, the others broad. A tuple is the values of several parameters."""
    return [value if index < count else broad(value) for index, value in enumerate(values)]


def broad(value: Any) -> Any:
    """One case for `make test-slow`."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.broad)


def full(value: Any) -> Any:
    """One case for `make test-full`: what it combines is held by others, each part by itself."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.full)
