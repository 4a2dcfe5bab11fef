"""Which tokens are told with a part of the text: those whose text is shown with it.

A token is told with the event that has the end of its text. Without text of its own, it goes with the text before it. A
stop string cuts the tokens whose text begins in it or behind it.
"""

from collections import deque
from dataclasses import dataclass

from gateway.words.scored import ScoredToken
from protocol.logprobs import TokenLogprob


@dataclass
class _Held:
    token: ScoredToken
    end: int | None  # characters of the text up to its end; None: a character is not complete yet


class HeldTokens:
    """Tokens of one choice whose text is not shown yet. `num_echoed`: characters of the prompt's text before them."""

    def __init__(self, num_echoed: int = 0) -> None:
        self._held: deque[_Held] = deque()
        self._num_read = num_echoed  # characters
        self._num_shown = num_echoed

    def read(self, token_id: int, scored: TokenLogprob, num_chars: int, *, is_whole: bool) -> None:
        """A token has added so many characters. `is_whole`: no character waits for its other bytes."""
        self._held.append(_Held(ScoredToken(token_id, self._num_read, scored), None))
        self._num_read += num_chars
        if is_whole:
            self._settle()

    def shown(self, num_chars: int) -> tuple[ScoredToken, ...]:
        """So many more characters are shown. The tokens that are told with them."""
        self._num_shown += num_chars
        tokens: list[ScoredToken] = []
        while self._held and (end := self._held[0].end) is not None and end <= self._num_shown:
            tokens.append(self._held.popleft().token)
        return tuple(tokens)

    def rest(self, *, is_cut: bool) -> tuple[ScoredToken, ...]:
        """No text follows. The tokens that are left; without those that a stop string cuts, if it `is_cut`."""
        self._settle()
        left = [held.token for held in self._held if not is_cut or held.token.offset < self._num_shown]
        self._held.clear()
        return tuple(left)

    def _settle(self) -> None:
        """All text of the tokens so far is known."""
        for held in reversed(self._held):
            if held.end is not None:
                return
            held.end = self._num_read
