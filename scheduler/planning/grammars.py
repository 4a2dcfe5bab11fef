"""The grammars that the executor has learnt, or is learning.

unknown --ask--> asked --GrammarLearnt--> learnt, or faulty
   ^------------------- make_room ---------------'
"""

from collections.abc import Callable, Collection
from typing import Final

from scheduler.plan import ForgetGrammar, GrammarLearnt, LearnGrammar

# Beside those in use. A compiled grammar takes up to 100 bytes for each character of its text.
MAX_KNOWN: Final = 64
MAX_KNOWN_CHARS: Final = 2 * 1024 * 1024


class Grammars:
    """By name. `submit` gives an operation to the executor."""

    def __init__(self, submit: Callable[[LearnGrammar | ForgetGrammar], None]) -> None:
        self._submit = submit
        self._faults: dict[str, str | None] = {}  # None: asked. The one asked for last comes last
        self._num_chars: dict[str, int] = {}
        self.num_learnt = 0  # and those that could not be

    def ask(self, name: str, text: str, in_use: Callable[[], Collection[str]]) -> None:
        """Has the executor learn a grammar, unless it knows it. `in_use`: the names that requests of this worker have.
        Of others, those that were asked for longest ago are forgotten."""
        if name in self._faults:
            self._faults[name] = self._faults.pop(name)
            return
        self._faults[name], self._num_chars[name] = None, len(text)
        self._submit(LearnGrammar(name, text))
        if self._is_full:
            self._make_room({name, *in_use()})

    def is_learnt(self, name: str) -> bool:
        """Whether the executor has tried to learn this grammar. True for "", no grammar."""
        return not name or self._faults.get(name) is not None

    def fault(self, name: str) -> str:
        """Why no answer can follow a grammar that was learnt; "" if one can."""
        return (self._faults[name] or "") if name else ""

    def learnt(self, outcome: GrammarLearnt) -> None:
        """The executor has learnt a grammar."""
        self.num_learnt += 1
        if outcome.name in self._faults:
            self._faults[outcome.name] = outcome.fault

    @property
    def _is_full(self) -> bool:
        return len(self._faults) > MAX_KNOWN or sum(self._num_chars.values()) > MAX_KNOWN_CHARS

    def _make_room(self, in_use: Collection[str]) -> None:
        for name in [name for name, fault in self._faults.items() if fault is not None and name not in in_use]:
            if not self._is_full:
                return
            del self._faults[name], self._num_chars[name]
            self._submit(ForgetGrammar(name))
