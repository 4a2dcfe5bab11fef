"""What each request in flight has received: tokens in order, each once, whoever sent them first.

FirstToken comes straight from prefill and Tokens from decode, over two connections, so either may be first and both
carry seq 0. Pure. What it does not know: text, clients, sockets, time (stamps bring their own).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.membership import WorkerKey
from gateway.pairing import Need
from protocol.errors import WireError
from protocol.messages_gateway import ChoiceTokens, Stamp
from protocol.request import FinishReason


@dataclass(frozen=True)
class Delivery:
    """New tokens of one choice, in order. `finish` is set with the last ones."""

    choice: int
    token_ids: tuple[int, ...]
    finish: FinishReason | None


@dataclass
class ChoiceRecord:
    """What one choice has received. `early` holds what came before its turn, by seq."""

    max_tokens: int
    next_seq: int = 0
    finish: FinishReason | None = None
    closed: bool = False  # finished, or nobody wants the rest
    early: dict[int, ChoiceTokens] = field(default_factory=dict)

    def accept(self, news: ChoiceTokens) -> tuple[tuple[int, ...], FinishReason | None]:
        """The tokens that are new and in order now, and the finish if it was reached. WireError: nonsense."""
        end = news.seq + len(news.token_ids)
        if news.seq < 0 or end > self.max_tokens:
            raise WireError(f"tokens [{news.seq}, {end}) of a choice, expected within [0, {self.max_tokens})")
        if self.closed:
            return (), None
        if news.seq > self.next_seq:
            known = self.early.get(news.seq)
            if known is None or _richer(news, known):
                self.early[news.seq] = news
            return (), None
        fresh = self._take(news)
        while self.early and not self.closed:
            seq = min(self.early)
            if seq > self.next_seq:
                break
            fresh += self._take(self.early.pop(seq))
        return fresh, self.finish

    def _take(self, news: ChoiceTokens) -> tuple[int, ...]:
        end = news.seq + len(news.token_ids)
        finish = FinishReason(news.finish) if news.finish else None
        if end < self.next_seq or (end == self.next_seq and finish is None):
            if finish is not None:
                raise WireError(f"a choice ends at {end} tokens after {self.next_seq} were received")
            return ()
        fresh = news.token_ids[self.next_seq - news.seq :]
        self.next_seq = end
        if finish is not None:
            self.finish = finish
            self.closed = True
            self.early.clear()
        return fresh


@dataclass
class RequestRecord:
    """One prompt in flight: who runs it and what its choices have received."""

    request_id: str
    attempt: int
    need: Need
    decode: WorkerKey
    prefill: WorkerKey | None
    choices: list[ChoiceRecord]
    stamps: list[Stamp] = field(default_factory=list)
    on_prefill: bool = True  # its first token has not come yet

    @property
    def is_done(self) -> bool:
        """Whether every choice has finished or is unwanted."""
        return all(choice.closed for choice in self.choices)


class Requests:
    """All requests in flight, by id."""

    def __init__(self) -> None:
        self._records: dict[str, RequestRecord] = {}
        self.num_choices = 0  # of all requests in flight
        self.num_dropped = 0  # deliveries for requests, attempts or choices that nobody waits for

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self, request_id: str, need: Need, decode: WorkerKey, prefill: WorkerKey | None, attempt: int = 0
    ) -> RequestRecord:
        """A request that is about to be assigned."""
        assert request_id not in self._records, f"request id {request_id} is not unique"
        choices = [ChoiceRecord(need.max_tokens) for _ in range(need.num_choices)]
        record = RequestRecord(request_id, attempt, need, decode, prefill, choices)
        self._records[request_id] = record
        self.num_choices += need.num_choices
        return record

    def find(self, request_id: str) -> RequestRecord | None:
        """A request in flight, whatever its attempt."""
        return self._records.get(request_id)

    def get(self, request_id: str, attempt: int) -> RequestRecord | None:
        """The request in flight, unless that attempt is not the present one."""
        record = self._records.get(request_id)
        return record if record is not None and record.attempt == attempt else None

    def accept(self, news: ChoiceTokens) -> tuple[RequestRecord, Delivery] | None:
        """What a message brings that is new, or None. WireError when it makes no sense."""
        record = self.get(news.request_id, news.attempt)
        if record is None:
            self.num_dropped += 1
            return None
        if not 0 <= news.choice < len(record.choices):
            raise WireError(f"choice {news.choice} of a request with {len(record.choices)} choices")
        token_ids, finish = record.choices[news.choice].accept(news)
        if not token_ids and finish is None:
            return None
        return record, Delivery(news.choice, token_ids, finish)

    def add_stamps(self, request_id: str, attempt: int, stamps: Iterable[Stamp]) -> None:
        """Moments in the life of a request, as workers saw them."""
        record = self.get(request_id, attempt)
        if record is not None:
            record.stamps += stamps

    def close_choice(self, request_id: str, choice: int) -> None:
        """Nobody wants the rest of this choice."""
        record = self._records.get(request_id)
        if record is not None:
            record.choices[choice].closed = True
            record.choices[choice].early.clear()

    def remove(self, request_id: str) -> RequestRecord | None:
        """Forgets a request; what still comes for it is dropped."""
        record = self._records.pop(request_id, None)
        if record is not None:
            self.num_choices -= record.need.num_choices
        return record

    def running_on(self, key: WorkerKey) -> list[RequestRecord]:
        """Requests that decode (or run unified) on this worker."""
        return [record for record in self._records.values() if record.decode == key]


def _richer(news: ChoiceTokens, known: ChoiceTokens) -> bool:
    return (len(news.token_ids), bool(news.finish)) > (len(known.token_ids), bool(known.finish))
