"""Which Baton runs: checks that Python imports its own rooms, and names its version.

Baton's packages have plain names, and packages such as `scheduler` exist on the public index. One installed beside
Baton could be imported in its place or overwrite its files. Every process checks this first.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from protocol.errors import ConfigError

DISTRIBUTION = "baton-llm"
_ROOT = Path(__file__).resolve().parents[1]
ROOMS = tuple("protocol runtime model transfer scheduler worker prefill decode unified gateway deploy loadtest".split())


def foreign_owners(owners: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The rooms that another installed distribution also claims. `owners` maps a package name to its distributions."""
    claimed = {room: tuple(sorted(set(owners.get(room, ())) - {DISTRIBUTION})) for room in ROOMS}
    return {room: names for room, names in claimed.items() if names}


def check_imports() -> None:
    """ConfigError if a room would be imported from another place. Takes about a millisecond."""
    for room in ROOMS:
        spec = find_spec(room)
        origin = spec.origin if spec else None
        if origin is None or Path(origin).resolve() != (_ROOT / room / "__init__.py").resolve():
            raise ConfigError(
                f"the package {room!r} comes from {origin or 'nowhere'}, expected it beside {Path(__file__).parent}; "
                f"is another distribution with a package of that name installed?"
            )


def check_distributions() -> None:
    """ConfigError if another distribution claims one of Baton's names. Reads every distribution's file list."""
    for room, names in foreign_owners(packages_distributions()).items():
        raise ConfigError(f"the package {room!r} belongs to {', '.join(names)} too: uninstall it or use a fresh venv")


@cache
def baton_version() -> str:
    """The version of the installed package."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"
