"""How OpenAI's API writes log-probabilities of an answer's tokens, and vLLM those of the prompt's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.routing.prompt_scores import PromptPart
from gateway.serving.parts import TOKENS, Kept, Later, finite, items_of, list_of
from gateway.words.scored import ScoredToken, SharedTokens
from protocol.logprobs import MAX_TOP_LOGPROBS, TokenLogprob

Fields = dict[str, Any]


# ---- as JSON ----


@dataclass(frozen=True)
class LogprobWriter(ABC):
    """Writes log-probabilities. `bytes_of`: the bytes of a token; None: it has no text, and neither does any token
    without a tokenizer. `as_ids`: tokens are written as "token_id:5". `num_top`: the likeliest tokens at each place, at
    most."""

    bytes_of: Callable[[int], bytes | None]
    as_ids: bool = False
    num_top: int = MAX_TOP_LOGPROBS
    _kept: dict[tuple[int, str], Kept] = field(default_factory=dict)  # by id of the tokens, and field

    @abstractmethod
    def write(self, *groups: Collection[ScoredToken]) -> Fields:
        """The field `logprobs` of a choice that has these tokens. Long lists are Laters."""

    def _list(self, name: str, write: "Write", groups: Collection[Collection[ScoredToken]]) -> list[Any] | Later:
        """A field of `logprobs`, of all these tokens."""
        if sum(map(len, groups)) <= TOKENS:
            return [entry for group in groups for entry in write(group)]
        return list_of([self._blocks(name, write, group) for group in groups])

    def _blocks(self, name: str, write: "Write", group: Collection[ScoredToken]) -> Later:
        if not isinstance(group, SharedTokens) or not group.is_shared:
            return Later(lambda: items_of(lambda: write(group), TOKENS))
        return self._kept.setdefault((id(group), name), Kept(lambda: items_of(lambda: write(group), TOKENS)))

    def _name(self, token_id: int) -> str:
        """Its text. Bytes that are no text by themselves are written as OpenAI's API does: "bytes:\\xe2\\x80"."""
        raw = None if self.as_ids else self.bytes_of(token_id)
        if raw is None:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionLogprobWriter(LogprobWriter):
    """As a completion has them."""

    def write(self, *groups: Collection[ScoredToken]) -> Fields:
        """See LogprobWriter."""
        return {
            "tokens": self._list("tokens", self._names, groups),
            "token_logprobs": self._list("token_logprobs", _values, groups),
            "top_logprobs": self._list("top_logprobs", self._tops, groups),
            "text_offset": self._list("text_offset", _offsets, groups),
        }

    def _names(self, tokens: Iterable[ScoredToken]) -> Iterator[str]:
        return (self._name(token.token_id) for token in tokens)

    def _tops(self, tokens: Iterable[ScoredToken]) -> Iterator[dict[str, float] | None]:
        return (None if scored is None else self.by_name(token_id, scored) for token_id, _, scored in tokens)

    def by_name(self, token_id: int, scored: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the token itself. Of tokens with one text, the likeliest one is told."""
        logprob_of: dict[str, float] = {}
        for other, logprob in (*scored.top, (token_id, scored.logprob)):
            logprob_of.setdefault(self._name(other), finite(logprob))
        return logprob_of


class ChatLogprobWriter(LogprobWriter):
    """As a chat has them."""

    def write(self, *groups: Collection[ScoredToken]) -> Fields:
        """See LogprobWriter."""
        return {"content": self._list("content", self._entries, groups), "refusal": None}

    def _entries(self, tokens: Iterable[ScoredToken]) -> Iterator[Fields]:
        return (self._entry(token_id, scored) for token_id, _, scored in tokens if scored is not None)

    def _entry(self, token_id: int, scored: TokenLogprob) -> Fields:
        top = [self._named(other, logprob) for other, logprob in scored.top]
        return {**self._named(token_id, scored.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> Fields:
        raw = self.bytes_of(token_id)
        return {"token": self._name(token_id), "logprob": finite(logprob), "bytes": None if raw is None else list(raw)}


Write = Callable[[Iterable[ScoredToken]], Iterable[Any]]


def _values(tokens: Iterable[ScoredToken]) -> Iterator[float | None]:
    return (None if scored is None else finite(scored.logprob) for _, _, scored in tokens)


def _offsets(tokens: Iterable[ScoredToken]) -> Iterator[int]:
    return (token.offset for token in tokens)


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
            str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": self._text(token_id)}
            for token_id, logprob, rank in ranked
        }

    def _text(self, token_id: int) -> str | None:
        raw = self.bytes_of(token_id)
        return None if raw is None else raw.decode(errors="replace")
