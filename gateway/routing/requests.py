"""Records each request in flight: its attempts, and what its choices have received.

A request runs as one attempt. If a worker is lost after outputs came, each choice gets an attempt of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.routing.choice_record import ChoiceRecord
from gateway.routing.members import WorkerKey
from gateway.routing.pairing import NO_LOAD, Load, Need
from gateway.routing.prompt_scores import PromptPart
from gateway.words.prompt import Prompt
from protocol.errors import BatonError, LaunchFailed, PrefillQueueFull, QueueFull, WireError, WorkerLeft
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob
from protocol.messages_gateway import (
    Assign,
    ChoiceTokens,
    FinishReason,
    Preempted,
    PromptLogprobs,
    RequestFailed,
    WorkerAddress,
    finish_reason,
)
from protocol.worker_facts import Stamp


class Delivery(NamedTuple):
    """New tokens of one choice, in order. `finish` is set with the last ones."""

    choice: int  # its number among all choices of the listener
    token_ids: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] = ()  # of these tokens, if the request asks for them


class Listener(Protocol):
    """Receives the tokens of one request. Called on the loop; must not block."""

    def on_tokens(self, delivery: Delivery) -> None:
        """New tokens of one choice, in order, each once."""
        ...

    def on_failed(self, error: BatonError) -> None:
        """The request has failed. No call follows."""
        ...


class HeldNews(NamedTuple):
    """A worker's news of a choice, as it came."""

    identity: bytes
    news: ChoiceTokens
    stamps: tuple[Stamp, ...]
    num_cached: int


@dataclass
class Attempt:
    """One try of neighbouring choices on a pair or a unified worker. `need`: what they still need there."""

    number: int
    choices: range
    need: Need
    decode: WorkerKey
    prefill: WorkerKey | None
    decode_load: Load = NO_LOAD  # what it counts for at `decode`, until it ends
    prefill_load: Load = NO_LOAD  # at `prefill`, until its first token arrives
    preempted: set[int] = field(default_factory=set)  # choices that later attempts have
    identities: tuple[bytes, ...] = field(init=False)  # routing ids of its workers, compared at every token
    heard: set[bytes] = field(default_factory=set)  # routing ids of those that have sent tokens
    held: list[HeldNews] = field(default_factory=list)  # that wait for the log-probabilities of the prompt

    def __post_init__(self) -> None:
        self.identities = tuple(key.identity for key in self.workers)

    @property
    def running(self) -> list[int]:
        """Its choices, without the preempted ones."""
        return [choice for choice in self.choices if choice not in self.preempted]

    @property
    def workers(self) -> tuple[WorkerKey, ...]:
        """The workers that run it."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)

    def needs(self, key: WorkerKey) -> bool:
        """Whether it cannot go on without this worker. Once the decode worker sends tokens, it has all KV."""
        return key == self.decode or (key == self.prefill and self.decode.identity not in self.heard)

    @property
    def pair(self) -> str:
        """The names of its workers, for the log."""
        return "+".join(key.worker_id for key in self.workers)


@dataclass
class RequestRecord:
    """One prompt in flight: what its choices have received, and the attempts that run."""

    request_id: str
    prompt: Prompt
    choices: list[ChoiceRecord]
    listener: Listener
    timeline: bool = False
    first_choice: int = 0  # the listener's number of its first choice
    is_over: bool = False
    attempts: dict[int, Attempt] = field(default_factory=dict)  # running ones, by number
    num_attempts: int = 0
    stamps: list[Stamp] = field(default_factory=list)
    num_cached: int = 0  # prompt tokens that the attempt without replayed outputs has not computed
    pairs: list[str] = field(default_factory=list)  # the workers of all attempts, for the log
    avoided: set[WorkerKey] = field(default_factory=set)  # workers on which an attempt failed
    undelivered: list[Attempt] = field(default_factory=list)  # those that have failed because no KV came
    full: set[WorkerKey] = field(default_factory=set)  # workers that have refused it since, because too many wait there
    prefixes: Sequence[bytes] = ()  # the hashes of its prompt's prefixes, once they matter
    prompt_part: PromptPart | None = field(init=False)  # the log-probabilities of its prompt; None: nobody asks

    def __post_init__(self) -> None:
        asked = self.prompt.prompt_logprobs
        self.prompt_part = None if asked is None else PromptPart(asked, self.prompt.token_ids)

    @property
    def prompt_missing(self) -> PromptLogprobsAsked | None:
        """What of its prompt's log-probabilities has still to come. Until it is there, no token of its answer counts:
        an attempt that has sent tokens may be lost with the rest of them."""
        return None if self.prompt_part is None else self.prompt_part.missing

    @property
    def is_done(self) -> bool:
        """Whether every choice has finished or was cancelled."""
        return all(choice.closed for choice in self.choices)

    def has_ended(self, attempt: Attempt) -> bool:
        """Whether all choices of an attempt are closed."""
        return all(self.choices[number].closed for number in attempt.running)

    def accept(self, attempt: Attempt, news: ChoiceTokens) -> Delivery | None:
        """What is new in a message of a running attempt. WireError if the message is invalid."""
        if news.choice not in attempt.choices:
            raise WireError(f"choice {news.choice}, expected one of the attempt: {list(attempt.choices)}")
        if news.choice in attempt.preempted:  # a first token from prefill, which came late
            return None
        fresh = self.choices[news.choice].accept(news)
        if not fresh.token_ids and fresh.finish is None:
            return None
        return Delivery(self.first_choice + news.choice, *fresh)

    def open_groups(self, numbers: Iterable[int]) -> list[range]:
        """The open choices, in groups that one attempt can run. A choice with outputs runs alone, since its prompt
        differs. Neighbours without outputs share their prompt and run together."""
        groups: list[range] = []
        for number in numbers:
            if self.choices[number].closed:
                continue
            last = groups[-1] if groups else None
            fresh = not self.choices[number].token_ids
            if last is not None and fresh and last.stop == number and not self.choices[last.start].token_ids:
                groups[-1] = range(last.start, number + 1)
            else:
                groups.append(range(number, number + 1))
        return groups

    def need_of(self, choices: range) -> Need:
        """What these choices need on new workers. Outputs received so far count as prompt there."""
        num_replayed = len(self.choices[choices.start].token_ids)
        prompt_tokens = len(self.prompt.token_ids) + num_replayed
        return Need(prompt_tokens, len(choices), self.prompt.sampling.max_tokens - num_replayed, self.prefixes)

    def next_attempt(self, choices: range, decode: WorkerKey, prefill: WorkerKey | None = None) -> Attempt:
        """The next attempt for these choices, which no worker has yet."""
        return Attempt(self.num_attempts, choices, self.need_of(choices), decode, prefill)

    def message(self, attempt: Attempt, prefill: WorkerAddress | None) -> Assign:
        """The Assign for the worker of a new attempt."""
        first = attempt.choices.start
        replayed = self.choices[first].token_ids
        return Assign(
            request_id=self.request_id,
            attempt=attempt.number,
            prompt_ids=(*self.prompt.token_ids, *replayed),
            sampling=self.prompt.sampling,
            num_choices=len(attempt.choices),
            prefill=prefill,
            timeline=self.timeline,
            first_choice=first,
            num_replayed=len(replayed),
            resumes=self.choices[first].was_preempted,
            cache_salt=self.prompt.cache_salt,
            priority=self.prompt.priority,
            grammar=self.prompt.grammar,
            prompt_logprobs=self.prompt_missing,
        )

    def note_failure(self, attempt: Attempt, error: BatonError, *, by_end: bool = False) -> None:
        """An attempt has ended with `error`; `by_end`: because one of its workers has ended. Its choices are not to
        blame for a worker's full line, or for one that leaves: then nothing counts."""
        running = [self.choices[number] for number in attempt.running]
        if isinstance(error, LaunchFailed):
            for choice in running:
                choice.num_launch_failures += 1
        if by_end:
            self.note_end(attempt)

        if isinstance(error, QueueFull):
            self.full.add((isinstance(error, PrefillQueueFull) and attempt.prefill) or attempt.decode)
        else:
            self.full.clear()
        if isinstance(error, QueueFull | WorkerLeft):
            for choice in running:
                choice.num_attempts -= 1  # nothing has failed

    def note_end(self, attempt: Attempt) -> None:
        """An attempt has ended because one of its workers has."""
        for number in attempt.running:
            self.choices[number].note_ended_worker()

    def note_preempted(self, attempt: Attempt, number: int) -> None:
        """The worker of `attempt` has preempted a choice, so the attempt goes on without it."""
        attempt.preempted.add(number)
        choice = self.choices[number]
        choice.was_preempted = True
        choice.num_attempts -= 1  # nothing has failed
        self.full.clear()

    def finish_what_ends(self, numbers: Iterable[int]) -> list[Delivery]:
        """Closes open choices that had received their last token. Their worker was lost before it reported the end."""
        ended: list[Delivery] = []
        for number in numbers:
            choice = self.choices[number]
            if choice.closed or not choice.token_ids:
                continue
            finish = finish_reason(self.prompt.sampling, len(choice.token_ids), choice.token_ids[-1])
            if finish is not None:
                choice.close(finish)
                ended.append(Delivery(self.first_choice + number, (), finish))
        return ended


class Requests:
    """All requests in flight, by id."""

    def __init__(self) -> None:
        self._records: dict[str, RequestRecord] = {}
        self.num_choices = 0  # of all requests in flight
        self.num_attempts = 0
        self.num_dropped = 0  # messages of requests or attempts that are over

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(list(self._records.values()))

    def add(
        self, request_id: str, prompt: Prompt, listener: Listener, timeline: bool = False, first_choice: int = 0
    ) -> RequestRecord:
        """Adds a request that is about to be assigned."""
        assert request_id not in self._records, f"request id {request_id} is not unique"
        sampling = prompt.sampling
        choices = [ChoiceRecord(sampling.max_tokens, sampling.logprobs) for _ in range(prompt.num_choices)]
        record = RequestRecord(request_id, prompt, choices, listener, timeline, first_choice)
        self._records[request_id] = record
        self.num_choices += prompt.num_choices
        return record

    def begin(self, record: RequestRecord, attempt: Attempt) -> None:
        """An attempt was given to its workers. What earlier ones report about its choices is dropped from now on."""
        record.num_attempts += 1
        self.num_attempts += 1
        record.attempts[attempt.number] = attempt

        record.pairs.append(attempt.pair)
        for number in attempt.choices:
            record.choices[number].num_attempts += 1
            record.choices[number].early.clear()

    def find(self, request_id: str) -> RequestRecord | None:
        """A request in flight."""
        return self._records.get(request_id)

    def reported(
        self, message: PromptLogprobs | ChoiceTokens | RequestFailed | Preempted
    ) -> tuple[RequestRecord, Attempt] | None:
        """The request and the running attempt that a worker reports on. If they are over, the message is dropped."""
        record = self._records.get(message.request_id)
        attempt = record.attempts.get(message.attempt) if record is not None else None
        if record is not None and attempt is not None:
            return record, attempt
        self.num_dropped += 1
        return None

    def remove(self, record: RequestRecord) -> None:
        """Forgets a request in flight. Later messages about it are dropped."""
        del self._records[record.request_id]
        record.is_over = True
        self.num_choices -= len(record.choices)

    def needing(self, key: WorkerKey) -> list[tuple[RequestRecord, Attempt]]:
        """Attempts that cannot go on without this worker."""
        return [entry for entry in self._attempts() if entry[1].needs(key)]

    def note_end(self, key: WorkerKey) -> list[tuple[RequestRecord, Attempt]]:
        """This worker has ended, and so had the attempts that it prefilled and that have failed because no KV came.
        Returns these, once."""
        ended = [(record, attempt) for record in self for attempt in record.undelivered if key == attempt.prefill]
        for record, attempt in ended:
            record.undelivered.remove(attempt)
            record.note_end(attempt)
        return ended

    def _attempts(self) -> Iterator[tuple[RequestRecord, Attempt]]:
        return ((record, attempt) for record in self for attempt in record.attempts.values())
