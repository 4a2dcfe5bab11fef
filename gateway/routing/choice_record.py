"""Records what one choice has received: its tokens in order, each once. Pure.

FirstToken comes from prefill and Tokens from decode, over two connections. Either may arrive first; both carry the same
seq.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.errors import WireError
from protocol.logprobs import LogprobsAsked, TokenLogprob, checked
from protocol.messages_gateway import ChoiceTokens, FinishReason

# Tokens that a worker may have drawn, but not sent, when it ends: of two launches with seven proposals each. With more,
# a death counts as further than it is, so that one more worker may die of a grammar; `max_attempts` bounds them all.
MOST_UNSENT = 16


@dataclass
class ChoiceRecord:
    """What one choice has received. `early`: messages of the present attempt that came before their turn, by seq."""

    max_tokens: int
    logprobs: LogprobsAsked | None = None  # what it asks for
    token_ids: list[int] = field(default_factory=list)
    num_attempts: int = 0
    num_launch_failures: int = 0  # attempts that ended because a launch raised
    num_ended_workers: int = 0  # attempts in a row that ended at about the same token, because a worker did
    num_at_end: int = 0  # tokens received when the last of them ended
    was_preempted: bool = False  # so it resumes before requests that have not begun
    finish: FinishReason | None = None
    closed: bool = False  # finished or cancelled
    early: dict[int, ChoiceTokens] = field(default_factory=dict)

    def accept(self, news: ChoiceTokens) -> "Fresh":
        """What is new and in order, with the finish if it was reached. WireError for invalid tokens."""
        end = news.seq + len(news.token_ids)
        if news.seq < 0 or end > self.max_tokens:
            raise WireError(f"tokens [{news.seq}, {end}) of a choice, expected within [0, {self.max_tokens})")

        if self.closed:
            return NOTHING

        if news.seq > len(self.token_ids):
            known = self.early.get(news.seq)
            if known is None or _richer(news, known):
                self.early[news.seq] = news
            return NOTHING

        fresh = self._take(news)
        while self.early and not self.closed:
            seq = min(self.early)
            if seq > len(self.token_ids):
                break
            more = self._take(self.early.pop(seq))
            fresh = Fresh(fresh.token_ids + more.token_ids, more.finish, fresh.logprobs + more.logprobs)

        return fresh

    def note_ended_worker(self) -> None:
        """Its attempt has ended because a worker did. All attempts draw the same tokens. So if this one has come
        further than the one before, what was drawn there had not ended that worker."""
        has_come_further = len(self.token_ids) > self.num_at_end + MOST_UNSENT
        self.num_ended_workers = 1 if has_come_further else self.num_ended_workers + 1
        self.num_at_end = len(self.token_ids)

    def close(self, finish: FinishReason | None = None) -> None:
        """Stops accepting tokens."""
        self.finish = finish
        self.closed = True
        self.early.clear()

    def _take(self, news: ChoiceTokens) -> "Fresh":
        num_known = len(self.token_ids)
        end = news.seq + len(news.token_ids)
        finish = FinishReason(news.finish) if news.finish else None
        if news.seq < num_known and news.token_ids[: num_known - news.seq] != tuple(self.token_ids[news.seq : end]):
            raise WireError(f"tokens from {news.seq} on differ from those that were received before")

        if end < num_known or (end == num_known and finish is None):
            if finish is not None:
                raise WireError(f"a choice ends at {end} tokens after {num_known} were received")
            return NOTHING

        logprobs = checked(news.logprobs, self.logprobs, len(news.token_ids))[num_known - news.seq :]
        fresh = news.token_ids[num_known - news.seq :]
        self.token_ids += fresh
        if finish is not None:
            self.close(finish)

        return Fresh(fresh, finish, logprobs)


class Fresh(NamedTuple):
    """What a choice has received, each token once. `logprobs`: of these tokens, if it asks for them."""

    token_ids: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] = ()


NOTHING: Final = Fresh((), None)


def _richer(news: ChoiceTokens, known: ChoiceTokens) -> bool:
    return (len(news.token_ids), bool(news.finish)) > (len(known.token_ids), bool(known.finish))
