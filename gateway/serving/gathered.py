"""The fold of a choice: what all its Steps add to one another, until the whole answer is written."""

from array import array
from collections.abc import Collection, Iterator
from itertools import chain

from gateway.text.channels.fold import Folded
from gateway.words.events import Finish, Step
from gateway.words.scored import ScoredToken, SharedTokens
from protocol.logprobs import packed, unpacked


class Gathered(Folded):
    """One choice with its tokens. `tells_all`: its log-probabilities are those of all of them; else of those whose text
    is shown."""

    def __init__(self, tells_all: bool = False) -> None:
        super().__init__()
        self._tells_all = tells_all
        self.token_ids = array("i")
        self.finish: Finish | None = None
        self.echoed: Collection[ScoredToken] = ()  # tokens of the prompt
        self.scored = PackedTokens()

    def take(self, step: Step) -> int:
        """Adds what the choice has gained. Returns the bytes of its log-probabilities."""
        for event in step.events:
            self.add(event)
        self.token_ids.extend(step.token_ids)
        self.finish = step.finish
        if not step.shown and not step.scores:  # nearly every call
            return 0

        if isinstance(step.shown, SharedTokens):
            self.echoed = step.shown
            return 0
        num_before = self.scored.num_bytes
        if self._tells_all:
            for token_id, scored in zip(step.token_ids, step.scores, strict=True):
                self.scored.add(ScoredToken(token_id, 0, scored))
        else:
            for token in step.shown:
                self.scored.add(token)
        return self.scored.num_bytes - num_before

    @property
    def num_pieces(self) -> int:
        """Pieces of all its texts."""
        return sum(len(text.pieces) for text in self.texts)

    @property
    def num_bytes(self) -> int:
        """What it holds beside log-probabilities, at most. An echoed text is shared."""
        return sum(text.num_bytes for text in self.texts) + 4 * len(self.token_ids)


class PackedTokens(Collection[ScoredToken]):
    """Tokens of one choice that wait until its answer is written, as they travel: unpacked they take ten times as much
    memory. None of them is the first token of a prompt."""

    def __init__(self) -> None:
        self._ids, self._offsets = array("i"), array("q")
        self._runs: list[tuple[int, bytearray]] = []  # (likeliest tokens at each place, rows)

    def add(self, token: ScoredToken) -> None:
        """Appends a token."""
        assert token.scored is not None
        self._ids.append(token.token_id)
        self._offsets.append(token.offset)
        num_top = len(token.scored.top)
        if not self._runs or self._runs[-1][0] != num_top:
            self._runs.append((num_top, bytearray()))
        self._runs[-1][1].extend(packed(token.scored))

    @property
    def num_bytes(self) -> int:
        """Memory of these tokens."""
        return 12 * len(self._ids) + sum(len(raw) for _, raw in self._runs)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[ScoredToken]:
        scores = chain.from_iterable(unpacked(*run) for run in self._runs)
        return map(ScoredToken, self._ids, self._offsets, scores)

    def __contains__(self, token: object) -> bool:
        return token in list(self)
