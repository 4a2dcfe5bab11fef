"""The version of Baton that runs."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def baton_version() -> str:
    """The version of the installed package."""
    try:
        return version("baton-llm")
    except PackageNotFoundError:
        return "(not installed)"
