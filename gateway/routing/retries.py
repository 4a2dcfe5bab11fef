"""What follows a failed attempt: whether its choices go on, with which error they end, what is counted and logged."""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.routing.choice_record import ChoiceRecord
from gateway.routing.members import HowLost, Loss, WorkerKey
from gateway.routing.requests import Attempt, RequestRecord
from protocol.errors import (
    BatonError,
    GrammarFault,
    KvNotDelivered,
    LaunchFailed,
    LayoutMismatch,
    Overloaded,
    Preemption,
    QueueFull,
    Unavailable,
    WorkerLeft,
    WorkerLost,
)
from runtime.log import get_log

PASSING = (Unavailable, LayoutMismatch, LaunchFailed, QueueFull)
PASSING_CODES = tuple(kind.code for base in PASSING for kind in (base, *base.__subclasses__()))
MOST_ENDED_WORKERS = 2  # at the same token of an answer in a grammar: native code that follows it may end them
MAX_FOLLOWED = 4096  # grammars that are known to have been followed
MOST_LAUNCH_FAILURES = 2  # of one request: the request itself may break the launches
log = get_log("gateway.retries")


@dataclass(frozen=True)
class RetryRules:
    """`max_attempts` counts the first one. `wait_s`: how long choices may wait for workers, counted from when their
    lost worker was last heard, or the last one of the role that a new request lacks. A worker that is started again
    should be back by then."""

    max_attempts: int
    wait_s: float


@dataclass(frozen=True, eq=False)
class Unpaired:
    """Choices that wait for workers because their attempt failed with `error`, or because there was no worker for them
    from the start. `since`: when the lost worker was last heard, or when the attempt failed if none was lost."""

    record: RequestRecord
    choices: Sequence[int]
    error: BatonError
    since: float


class Retries:
    """Attempts after the first. `counts`: by the code of the error that ended the attempt before."""

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys(PASSING_CODES, 0))
        self._followed: OrderedDict[str, None] = OrderedDict()  # names of grammars

    def followed(self, grammar: str) -> None:
        """An answer in the grammar of this name has ended well, so the grammar ends no workers."""
        self._followed[grammar] = None
        self._followed.move_to_end(grammar)
        if len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)

    def grammar_at_fault(self, record: RequestRecord, attempt: Attempt) -> GrammarFault | None:
        """The error that ends a request, not over yet, whose grammar has probably ended workers, the last one with this
        attempt; else None. Those of others may have ended them, so a grammar that an answer has followed is not
        blamed."""
        grammar = record.prompt.sampling.grammar
        most = max((record.choices[number].num_ended_workers for number in attempt.running), default=0)
        if not grammar or grammar in self._followed or most < MOST_ENDED_WORKERS or record.is_over:
            return None
        return GrammarFault(f"{most} workers have ended while they followed its grammar, so it is not tried again")

    def note(self, record: RequestRecord, error: BatonError) -> None:
        """Counts and logs that another attempt has begun after one that ended with `error`, or logs that the first one
        has begun after a wait for workers."""
        if record.num_attempts == 1:
            log.info("request has waited", request_id=record.request_id, worker=record.pairs[-1], why=error.message)
            return
        self.counts[error.code] += 1
        tell, event = log.warning, "request retried"
        if isinstance(error, Preemption):  # part of serving with a full memory; nothing is broken
            tell, event = log.info, "request preempted"
        elif isinstance(error, QueueFull):
            tell, event = log.info, "request sent to another worker"
        elif isinstance(error, WorkerLeft):
            tell, event = log.info, "request moved"
        tell(
            event,
            request_id=record.request_id,
            attempt=record.num_attempts - 1,
            worker=record.pairs[-1],
            before=",".join(dict.fromkeys(record.pairs[:-1])),
            why=error.message,
        )


def note_failure(record: RequestRecord, attempt: Attempt, error: BatonError, losses: Mapping[WorkerKey, Loss]) -> None:
    """Notes in its record that an attempt has ended with `error`. If no KV came, prefill may have ended: decode may
    notice it before the gateway does, or say so when the gateway knows it."""
    ended = [key for key in attempt.workers if key in losses and losses[key].how is HowLost.ENDED]
    by_end = isinstance(error, WorkerLost | KvNotDelivered) and bool(ended)
    record.note_failure(attempt, error, by_end=by_end)
    if isinstance(error, KvNotDelivered) and not by_end:
        record.undelivered.append(attempt)


def may_go_on(error: BatonError) -> bool:
    """Whether a request that failed with `error` may be tried again, by other workers or the same ones."""
    return isinstance(error, PASSING)


def final_error(
    error: BatonError, choice: ChoiceRecord, has_pair: bool, waited_s: float, rules: RetryRules
) -> BatonError | None:
    """The error that ends a `choice` whose last attempt failed with `error`. None if it goes on: with the ready pair,
    or without one when a worker has joined. `waited_s`: since the lost worker was last heard; 0 if none was lost."""
    if not may_go_on(error):
        return error
    if isinstance(error, QueueFull):
        return None if has_pair else Overloaded(f"{error.message}, and no other worker has room; try again")

    if choice.num_launch_failures >= MOST_LAUNCH_FAILURES:
        return LaunchFailed(f"{error.message} (computing it failed {choice.num_launch_failures} times)")
    if choice.num_attempts >= rules.max_attempts:
        tried = "the only attempt" if choice.num_attempts == 1 else f"the last of {choice.num_attempts} attempts"
        return _for_client(error, f"{error.message} ({tried})")

    if has_pair or waited_s < rules.wait_s:
        return None
    return _for_client(error, f"{error.message}, and no other worker could take over in {rules.wait_s:g} s")


def _for_client(error: BatonError, message: str) -> BatonError:
    """The same kind of error if clients know it as a fault of the service, else Unavailable."""
    return type(error)(message) if isinstance(error, Unavailable | LaunchFailed) else Unavailable(message)
