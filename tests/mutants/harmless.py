"""Generated mutants that no test needs to notice, each with the reason. `make mutants` leaves them out."""

from dataclasses import dataclass

from tests.mutants.generate import Generated


@dataclass(frozen=True)
class Harmless:
    """The mutants of `function` in `path` whose diff is `change`: `Generated.change`, a line each.

    A test fails when no mutant is like that any more. So an entry goes when its function changes there.
    """

    path: str
    function: str
    change: tuple[str, ...]
    why: str


HARMLESS: tuple[Harmless, ...] = ()

_KEYS = {(each.path, each.function, each.change) for each in HARMLESS}


def is_harmless(mutant: Generated) -> bool:
    """Whether it is listed."""
    return (mutant.path, mutant.function, mutant.change) in _KEYS
