"""What one choice of an answer has, until the whole answer is written."""

from array import array
from collections.abc import Collection

from gateway.choice_text import Piece
from gateway.logprobs import PackedTokens, ScoredToken, SharedTokens


class Gathered:
    """One choice. `tells_all`: its log-probabilities are those of all its tokens; else of those whose text is shown."""

    def __init__(self, tells_all: bool = False) -> None:
        self._tells_all = tells_all
        self.texts: list[str] = []
        self.num_chars = 0
        self.token_ids = array("i")
        self.finish_reason: str | None = None
        self.echoed: Collection[ScoredToken] = ()  # tokens of the prompt
        self.scored = PackedTokens()

    def take(self, piece: Piece) -> int:
        """Adds what the choice has gained. Returns the bytes of its log-probabilities."""
        self.texts.append(piece.text)
        self.num_chars += len(piece.text)
        self.token_ids.extend(piece.token_ids)
        self.finish_reason = piece.finish_reason
        if not piece.logprobs and not piece.scores:  # nearly every call
            return 0

        if isinstance(piece.logprobs, SharedTokens):
            self.echoed = piece.logprobs
            return 0
        num_before = self.scored.num_bytes
        if self._tells_all:
            for token_id, scored in zip(piece.token_ids, piece.scores, strict=True):
                self.scored.add(ScoredToken(token_id, 0, scored))
        else:
            for each in piece.logprobs:
                self.scored.add(each)
        return self.scored.num_bytes - num_before

    @property
    def num_bytes(self) -> int:
        """What it holds beside log-probabilities, at most. An echoed text is shared."""
        return 4 * self.num_chars + 64 * len(self.texts) + 4 * len(self.token_ids)
