"""The log-probabilities of a prompt's own tokens, as far as workers have told them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from protocol.errors import WireError
from protocol.logprobs import Logprobs, PromptLogprobsAsked, TokenLogprob, check_tokens, unpacked
from protocol.messages_gateway import PromptLogprobs


@dataclass
class PromptPart:
    """The log-probabilities of one prompt's tokens, as far as they have come. They are kept as they travel, because
    unpacked they take ten times as much memory."""

    asked: PromptLogprobsAsked
    token_ids: Sequence[int]
    _pieces: list[Logprobs] = field(default_factory=list)
    _num_known: int = 0

    @property
    def missing(self) -> PromptLogprobsAsked | None:
        """What the next attempt has to compute; None if nothing is missing."""
        start = self.asked.start + self._num_known
        return replace(self.asked, start=start) if start < len(self.token_ids) else None

    def accept(self, news: PromptLogprobs) -> None:
        """Adds those that are new. WireError if they leave a gap, or make no sense."""
        logprobs, start = news.logprobs, self.asked.start + self._num_known
        end = news.start + logprobs.num_tokens
        if not self.asked.start <= news.start <= start or end > len(self.token_ids):
            raise WireError(
                f"logprobs of prompt tokens [{news.start}, {end}), expected them from {start} on, "
                f"of a prompt of {len(self.token_ids)} tokens"
            )
        check_tokens(logprobs, self.asked.num_top, logprobs.num_tokens)
        if end > start:
            self._pieces.append(logprobs.part(start - news.start, logprobs.num_tokens))
            self._num_known = end - self.asked.start

    def tokens(self, num_top: int) -> Iterator[TokenLogprob | None]:
        """Those of every token, with so many of the likeliest ones; None for each token before those asked for."""
        yield from [None] * min(self.asked.start, len(self.token_ids))
        for piece in self._pieces:
            for scored in unpacked(piece.num_top, piece.raw):
                yield scored._replace(top=scored.top[:num_top])

    @property
    def num_bytes(self) -> int:
        """Memory of these."""
        return sum(len(piece.raw) for piece in self._pieces)

    def __len__(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)
