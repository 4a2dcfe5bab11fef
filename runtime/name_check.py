"""Whether the rooms that Python would import are really ours.

Baton's packages have plain names, and a package called `scheduler`, say, exists on the public index: installed beside
us it would be imported in our place, or overwrite our files. Every process checks this first. What it does not know:
what is in a room.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from protocol.errors import ConfigError

DISTRIBUTION = "baton-llm"
ROOMS = (
    "protocol",
    "runtime",
    "model",
    "transfer",
    "scheduler",
    "worker",
    "prefill",
    "decode",
    "unified",
    "gateway",
    "deploy",
    "loadtest",
)


def misplaced(origins: Mapping[str, str | None], root: Path) -> dict[str, str | None]:
    """The rooms whose `__init__.py` is not `root/ROOM/__init__.py`, with the place found (None: found nowhere)."""
    return {
        room: origin
        for room, origin in origins.items()
        if origin is None or Path(origin).resolve() != (root / room / "__init__.py").resolve()
    }


def foreign_owners(
    owners: Mapping[str, Sequence[str]], ours: str = DISTRIBUTION, rooms: Iterable[str] = ROOMS
) -> dict[str, tuple[str, ...]]:
    """The rooms that another installed distribution claims too. `owners` maps a package name to its distributions."""
    claimed = {room: tuple(sorted(set(owners.get(room, ())) - {ours})) for room in rooms}
    return {room: names for room, names in claimed.items() if names}


def check_imports() -> None:
    """ConfigError if a room would be imported from somewhere else than this one. Takes about a millisecond."""
    origins = {room: _origin(room) for room in ROOMS}
    for room, origin in misplaced(origins, Path(__file__).resolve().parents[1]).items():
        raise ConfigError(
            f"the package {room!r} comes from {origin or 'nowhere'}, expected it beside {Path(__file__).parent}; "
            f"is another distribution with a package of that name installed?"
        )


def check_distributions() -> None:
    """ConfigError if another installed distribution owns one of our names. Reads every distribution's file list."""
    for room, names in foreign_owners(packages_distributions()).items():
        raise ConfigError(f"the package {room!r} belongs to {', '.join(names)} too: uninstall it or use a fresh venv")


def _origin(room: str) -> str | None:
    spec = find_spec(room)
    return spec.origin if spec else None
