"""Log-probabilities in answers: which tokens a chunk tells of, and how OpenAI's API writes them.

A token is told with the chunk that has the end of its text. Without text of its own, it goes with the text before it. A
stop string cuts the tokens whose text begins in it or behind it.
"""

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from gateway.parts import TOKENS, Kept, Later, items_of, list_of
from protocol.logprobs import MAX_TOP_LOGPROBS, TokenLogprob, packed, unpacked

LEAST = -9999.0  # stands for minus infinity, which JSON does not have, as in OpenAI's API and vLLM
Fields = dict[str, Any]


class ScoredToken(NamedTuple):
    """A token of an answer, with its log-probability."""

    token_id: int
    offset: int  # characters of the choice's text before its own
    scored: TokenLogprob | None  # None: the first token of an echoed prompt, before which there is nothing


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
        found: list[ScoredToken] = []
        while self._held and (end := self._held[0].end) is not None and end <= self._num_shown:
            found.append(self._held.popleft().token)
        return tuple(found)

    def rest(self, *, is_cut: bool) -> tuple[ScoredToken, ...]:
        """No text follows. The tokens that are left; without those that a stop string cuts, if it `is_cut`."""
        self._settle()
        left = [each.token for each in self._held if not is_cut or each.token.offset < self._num_shown]
        self._held.clear()
        return tuple(left)

    def _settle(self) -> None:
        """All text of the tokens so far is known."""
        for each in reversed(self._held):
            if each.end is not None:
                return
            each.end = self._num_read


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


class SharedTokens(Collection[ScoredToken]):
    """Tokens with which all choices of one prompt begin. `is_shared`: there are several choices."""

    is_shared: bool


# ---- as JSON ----


@dataclass(frozen=True)
class LogprobWriter:
    """Writes log-probabilities as a completion or a chat has them. `bytes_of`: the bytes of a token; None: it has no
    text, and neither does any token without a tokenizer. `as_ids`: tokens are written as "token_id:5". `num_top`: the
    likeliest tokens at each place, at most."""

    is_chat: bool
    bytes_of: Callable[[int], bytes | None]
    as_ids: bool = False
    num_top: int = MAX_TOP_LOGPROBS
    _kept: dict[tuple[int, str], Kept] = field(default_factory=dict)  # by id of the tokens, and field

    def write(self, *groups: Collection[ScoredToken]) -> Fields:
        """The field `logprobs` of a choice that has these tokens. Long lists are Laters."""
        if self.is_chat:
            return {"content": self._list("content", self._entries, groups), "refusal": None}
        return {
            "tokens": self._list("tokens", self._names, groups),
            "token_logprobs": self._list("token_logprobs", _values, groups),
            "top_logprobs": self._list("top_logprobs", self._tops, groups),
            "text_offset": self._list("text_offset", _offsets, groups),
        }

    def _list(self, name: str, write: "Write", groups: Collection[Collection[ScoredToken]]) -> list[Any] | Later:
        """A field of `logprobs`, of all these tokens."""
        if sum(map(len, groups)) <= TOKENS:
            return [each for group in groups for each in write(group)]
        return list_of([self._blocks(name, write, group) for group in groups])

    def _blocks(self, name: str, write: "Write", group: Collection[ScoredToken]) -> Later:
        if not isinstance(group, SharedTokens) or not group.is_shared:
            return Later(lambda: items_of(lambda: write(group), TOKENS))
        return self._kept.setdefault((id(group), name), Kept(lambda: items_of(lambda: write(group), TOKENS)))

    def _entries(self, tokens: Iterable[ScoredToken]) -> Iterator[Fields]:
        return (self._entry(token_id, scored) for token_id, _, scored in tokens if scored is not None)

    def _names(self, tokens: Iterable[ScoredToken]) -> Iterator[str]:
        return (self._name(each.token_id) for each in tokens)

    def _tops(self, tokens: Iterable[ScoredToken]) -> Iterator[dict[str, float] | None]:
        return (None if scored is None else self.by_name(token_id, scored) for token_id, _, scored in tokens)

    def by_name(self, token_id: int, scored: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the token itself. Of tokens with one text, the likeliest one is told."""
        found: dict[str, float] = {}
        for other, logprob in (*scored.top, (token_id, scored.logprob)):
            found.setdefault(self._name(other), finite(logprob))
        return found

    def _entry(self, token_id: int, scored: TokenLogprob) -> Fields:
        top = [self._named(other, logprob) for other, logprob in scored.top]
        return {**self._named(token_id, scored.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> Fields:
        raw = self.bytes_of(token_id)
        return {"token": self._name(token_id), "logprob": finite(logprob), "bytes": None if raw is None else list(raw)}

    def _name(self, token_id: int) -> str:
        """Its text. Bytes that are no text by themselves are written as OpenAI's API does: "bytes:\\xe2\\x80"."""
        raw = None if self.as_ids else self.bytes_of(token_id)
        if raw is None:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


Write = Callable[[Iterable[ScoredToken]], Iterable[Any]]


def _values(tokens: Iterable[ScoredToken]) -> Iterator[float | None]:
    return (None if scored is None else finite(scored.logprob) for _, _, scored in tokens)


def _offsets(tokens: Iterable[ScoredToken]) -> Iterator[int]:
    return (each.offset for each in tokens)


def finite(logprob: float) -> float:
    """The number for JSON."""
    return max(logprob, LEAST)
