"""The grammars that the executor has learnt, or is learning.

unknown --ask--> asked --GrammarLearnt--> learnt, or faulty
   ^------------------- make_room ---------------'
"""

from collections.abc import Callable, Collection
from typing import Final

from scheduler.plan import ForgetGrammar, GrammarLearnt, LearnGrammar

MAX_KNOWN: Final = 64  # beside those in use


class Grammars:
    """By name. `submit` gives an operation to the executor."""

    def __init__(self, submit: Callable[[LearnGrammar | ForgetGrammar], None]) -> None:
        self._submit = submit
        self._faults: dict[str, str | None] = {}  # None: asked. The one asked for last comes last

    def ask(self, name: str, text: str, in_use: Callable[[], Collection[str]]) -> None:
        """Has the executor learn a grammar, unless it knows it. `in_use`: the names that requests of this worker have.
        Of others, those that were asked for longest ago are forgotten."""
        if name in self._faults:
            self._faults[name] = self._faults.pop(name)
            return
        self._faults[name] = None
        self._submit(LearnGrammar(name, text))
        if len(self._faults) > MAX_KNOWN:
            self._make_room({name, *in_use()})

    def is_learnt(self, name: str) -> bool:
        """Whether the executor has tried to learn this grammar. True for "", no grammar."""
        return not name or self._faults.get(name) is not None

    def fault(self, name: str) -> str:
        """Why no answer can follow a grammar that was learnt; "" if one can."""
        return (self._faults[name] or "") if name else ""

    def learnt(self, outcome: GrammarLearnt) -> None:
        """The executor has learnt a grammar."""
        if outcome.name in self._faults:
            self._faults[outcome.name] = outcome.fault

    def _make_room(self, in_use: Collection[str]) -> None:
        unused = [name for name, fault in self._faults.items() if fault is not None and name not in in_use]
        for name in unused[: len(self._faults) - MAX_KNOWN]:
            del self._faults[name]
            self._submit(ForgetGrammar(name))
