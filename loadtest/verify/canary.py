"""Whether a part of an answer is another request's: a needle of its prompt, or its answer. Pure.

Each prompt has a needle, eight ids that no other text has. An answer that holds another prompt's needle has leaked. An
answer that is wrong, and goes on as another known answer does, was mixed up with that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtest.verify.answers import Token

RUN = 8  # tokens that no two texts share by chance
SHORT_RUN = 4  # enough if it is all of a short answer


@dataclass
class Canary:
    """The needles and known answers of a run, each with the number of its request."""

    _needles: dict[tuple[Token, ...], int] = field(default_factory=dict)
    _answers: dict[int, tuple[Token, ...]] = field(default_factory=dict)

    def add(self, number: int, needle: Sequence[Token], answer: Sequence[Token]) -> None:
        """A request, its needle, and its right answer."""
        self._needles[tuple(needle)] = number
        self._answers[number] = tuple(answer)

    def owner(self, tokens: Sequence[Token], own: int, *, is_wrong: bool) -> str:
        """Whose text the answer to request `own` holds, as words; empty if it is its own. Known answers count only for
        an answer that `is_wrong`: models may say the same to two prompts."""
        runs = _runs(tokens, RUN)
        for needle, number in self._needles.items():
            if number != own and needle in runs:
                return f"it holds the needle of request {number}"
        if not is_wrong:
            return ""

        size = max(SHORT_RUN, min(RUN, len(tokens)))
        new = _runs(tokens, size) - _runs(self._answers.get(own, ()), size)
        for number, answer in self._answers.items():
            if number != own and new & _runs(answer, size):
                return f"it holds a part of the answer to request {number}"
        return ""


def _runs(tokens: Sequence[Token], size: int) -> set[tuple[Token, ...]]:
    return {tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)}
