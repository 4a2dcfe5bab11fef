"""Which version of Baton runs."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def baton_version() -> str:
    """As the installed package says; it does not change while a process lives."""
    try:
        return version("baton-llm")
    except PackageNotFoundError:
        return "(not installed)"
