"""What an answer tells of its prompt: the text before the answer, and log-probabilities of the prompt's tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.choice_text import Detokenizer
from gateway.logprobs import ScoredToken, SharedTokens, finite
from protocol.errors import WireError
from protocol.logprobs import Logprobs, PromptLogprobsAsked, TokenLogprob, check_tokens, unpacked
from protocol.messages_gateway import PromptLogprobs


@dataclass(frozen=True)
class Echo:
    """The text before the answer. `offsets`: its characters before each token of the prompt, if these are told with
    their log-probabilities and those of `num_top` likeliest tokens; None: they are not told."""

    text: str
    offsets: tuple[int, ...] | None = None
    num_top: int = 0


def echo_of(text: str | None, token_ids: Sequence[int], detokenizer: Detokenizer, num_top: int | None) -> Echo:
    """The echo of a prompt that came as `text`, or as ids alone. `num_top`: see Echo; None: no tokens are told."""
    parts, offsets, num_chars = list[str](), list[int](), 0
    if text is None or num_top is not None:
        for token_id in token_ids:
            offsets.append(num_chars)
            parts.append(detokenizer.feed(token_id))
            num_chars += len(parts[-1])
    if text is None:
        text = "".join(parts)  # a character that is not complete is shown with the answer
    if num_top is None:
        return Echo(text)
    return Echo(text, tuple(min(offset, len(text)) for offset in offsets), num_top)


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
        found, start = news.logprobs, self.asked.start + self._num_known
        end = news.start + found.num_tokens
        if not self.asked.start <= news.start <= start or end > len(self.token_ids):
            raise WireError(
                f"logprobs of prompt tokens [{news.start}, {end}), expected them from {start} on, "
                f"of a prompt of {len(self.token_ids)} tokens"
            )
        check_tokens(found, self.asked.num_top, found.num_tokens)
        if end > start:
            self._pieces.append(found.part(start - news.start, found.num_tokens))
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


@dataclass(frozen=True)
class EchoedTokens(SharedTokens):
    """The tokens of an echo. They are unpacked where they are read."""

    part: PromptPart
    echo: Echo
    is_shared: bool = False

    def __len__(self) -> int:
        return len(self.part)

    def __iter__(self) -> Iterator[ScoredToken]:
        scores = self.part.tokens(self.echo.num_top)
        return map(ScoredToken, self.part.token_ids, self.echo.offsets or (), scores)

    def __contains__(self, token: object) -> bool:
        return token in list(self)


@dataclass(frozen=True)
class PromptWriter:
    """Writes the field `prompt_logprobs` as vLLM does. `bytes_of`: as in LogprobWriter."""

    num_top: int
    bytes_of: Callable[[int], bytes | None]

    def entries(self, part: PromptPart) -> Iterator[dict[str, Any] | None]:
        """For each token of the prompt null, or an object by token id: the token itself first, then the likeliest."""
        for token_id, scored in zip(part.token_ids, part.tokens(self.num_top), strict=True):
            yield None if scored is None else self._entry(token_id, scored)

    def _entry(self, token_id: int, scored: TokenLogprob) -> dict[str, Any]:
        ranked = [(token_id, scored.logprob, scored.rank)]
        ranked += [(other, logprob, rank) for rank, (other, logprob) in enumerate(scored.top, 1) if other != token_id]
        return {
            str(each): {"logprob": finite(logprob), "rank": rank, "decoded_token": self._text(each)}
            for each, logprob, rank in ranked
        }

    def _text(self, token_id: int) -> str | None:
        raw = self.bytes_of(token_id)
        return None if raw is None else raw.decode(errors="replace")
