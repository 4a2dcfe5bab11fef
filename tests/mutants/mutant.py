"""What a mutant is, and who may kill it."""

from dataclasses import dataclass

SEEDS = 16
ANY = ("late", "early", "early-late-copies", "random", "ranked", "in-order")
OVERTAKING = ("ranked", "random", "late")


@dataclass(frozen=True)
class Mutant:
    """In `function`, `old` becomes `new`, which is wrong because of `why`. Both are patterns, see pattern.py.

    An empty `new` deletes the statement. `function` is the dotted name of a function or a class, "Executor.submit", in
    any file. `old` fits exactly once in all of that name. If it fits in several files, `function` begins with the path
    or the folder of the right one: "prefill/ Worker.step".

    `strategies` are those of make explore, SEEDS seeds each, with `detect` under the race detector, with `groups` of
    workloads with groups of ranks; `tests` are for what no schedule of a fake model shows.
    """

    name: str
    function: str
    old: str
    new: str
    why: str
    strategies: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    detect: bool = False
    groups: bool = False
    worlds: int = 0  # of make explore-handoff
