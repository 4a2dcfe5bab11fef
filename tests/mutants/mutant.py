"""What a mutant is, and who may kill it."""

from dataclasses import dataclass

SEEDS = 10
ANY = ("late", "early", "early-late-copies", "random", "ranked", "in-order")
OVERTAKING = ("ranked", "random", "late")


@dataclass(frozen=True)
class Mutant:
    """`old` stands in `file` exactly once and becomes `new`, which is wrong because of `why`.

    `strategies` are those of make explore, each with ten seeds, with `detect` under the race detector; `tests` are for
    what no schedule of a fake model shows.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    strategies: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    detect: bool = False
    worlds: int = 0  # of make explore-handoff
