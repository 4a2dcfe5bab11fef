"""Gives requests to workers: picks a pair, passes on what it sends, and retries elsewhere when it fails.

A thin loop around picking.py, attempts.py, requests.py and retries.py. The caller reports lost workers with `lost`.
"""

from collections.abc import Callable
from dataclasses import replace

from gateway.routing.attempts import Attempts
from gateway.routing.members import HowLost, WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.picking import Picker
from gateway.routing.requests import Attempt, HeldNews, Listener, RequestRecord
from gateway.routing.retries import Retries, RetryRules, Unpaired, final_error, may_go_on, note_failure
from gateway.words.prompt import Prompt
from protocol.errors import (
    BatonError,
    InternalError,
    Preemption,
    QueueFull,
    Unavailable,
    WireError,
    WorkerLeft,
    WorkerLost,
    error_from_code,
)
from protocol.messages_gateway import (
    CancelRequest,
    ChoiceTokens,
    FinishReason,
    Preempted,
    PromptLogprobs,
    RequestFailed,
    ToWorker,
)
from protocol.worker_facts import Stamp
from runtime.clock import Clock
from runtime.log import Refusals, get_log
from runtime.settings import Pairing
from runtime.waiting_line import WaitingLine

INVALID, FOREIGN = "tokens", "of another's request"  # kinds of refused messages
log = get_log("gateway.dispatch")


class Dispatch:
    """Requests in flight and their load on the workers. `send` returns False if that worker is not connected. Then
    `lose` is called: it removes the worker from the membership and calls `lost`. `refusals` counts invalid messages.
    `blame` gets the name of a grammar that has probably ended workers. `awaited_since`: see Presence."""

    def __init__(
        self,
        membership: Membership,
        clock: Clock,
        pairing: Pairing,
        rules: RetryRules,
        send: Callable[[WorkerKey, ToWorker], bool],
        lose: Callable[[WorkerKey], None],
        refusals: Refusals,
        blame: Callable[[str], None] = lambda _grammar: None,
        awaited_since: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._membership, self._clock = membership, clock
        self._send, self._awaited_since = send, awaited_since
        self._rules, self._refusals, self._blame = rules, refusals, blame

        self._attempts = Attempts(clock, send, lose)
        self.requests, self.loads = self._attempts.requests, self._attempts.loads
        self._picker = Picker(membership, pairing, self.loads)
        self.retries = Retries()
        self._unpaired: WaitingLine[Unpaired] = WaitingLine()
        self._stopped: str | None = None  # if set, why no request is taken any more

    def stop(self, reason: str) -> None:
        """Fails and cancels every request in flight, and refuses every later one."""
        self._stopped = reason
        for record in self.requests:
            if not record.is_over:  # the failure of one before may have cancelled it
                self._fail(record, Unavailable(reason))

    def assign(
        self, request_id: str, prompt: Prompt, listener: Listener, timeline: bool = False, first_choice: int = 0
    ) -> RequestRecord:
        """Gives a request to a pair of workers. Without one, it waits for workers that may come back soon, as requests
        of a lost worker do; else Unavailable. `listener` numbers its choices from `first_choice`."""
        if self._stopped is not None:
            raise Unavailable(self._stopped)

        record = self.requests.add(request_id, prompt, listener, timeline, first_choice)
        everything = range(prompt.num_choices)

        while (pair := self._picker.pick(record, everything)) is not None:
            if self._attempts.begin(record, everything, pair):
                return record

        error = Unavailable(self._membership.missing or "no workers are ready that can hold this request")
        since = self._awaited_since()
        if since is None or self._clock.now() - since >= self._rules.wait_s:
            self.requests.remove(record)
            raise error
        self._wait(Unpaired(record, everything, error, since))
        return record

    def cancel(self, request_id: str, choice: int = -1) -> None:
        """Cancels one choice, or (-1) the whole request. Does nothing after its end."""
        record = self.requests.find(request_id)
        if record is None or (choice >= 0 and record.choices[choice].closed):
            return
        if choice >= 0:
            self._attempts.cancel_choice(record, choice)
        if choice < 0 or record.is_done:
            self._attempts.forget(record)

    def _fail(self, record: RequestRecord, error: BatonError) -> None:
        self._attempts.forget(record)
        record.listener.on_failed(error)

    # ---- attempts that fail ----

    def _attempt_failed(self, record: RequestRecord, attempt: Attempt, error: BatonError) -> None:
        """Keeps the outputs of the attempt's choices, and retries what is missing."""
        self._attempts.end(record, attempt)
        lost = self._membership.losses
        note_failure(record, attempt, error, lost)

        # Choices wait from when their lost worker was last heard, else from now.
        since = min((lost[key].last_seen for key in attempt.workers if key in lost), default=self._clock.now())
        if may_go_on(error) and not isinstance(error, WorkerLost | WorkerLeft | QueueFull):
            record.avoided.update(attempt.workers)

        ended = record.finish_what_ends(attempt.running)
        if record.is_done:
            self._attempts.forget(record)
        for delivery in ended:
            record.listener.on_tokens(delivery)

        if not self._blames(record, attempt):
            self._go_on(Unpaired(record, attempt.running, error, since))

    def _blames(self, record: RequestRecord, attempt: Attempt) -> bool:
        """Whether a request ends now, because its grammar has ended workers, the last one with this attempt."""
        if (fault := self.retries.grammar_at_fault(record, attempt)) is None:
            return False
        self._blame(record.prompt.sampling.grammar)
        self._fail(record, fault)
        return True

    def _go_on(self, unpaired: Unpaired) -> None:
        """Gives unpaired choices to other workers, keeps them waiting for some, or ends the request."""
        record = unpaired.record
        for choices in record.open_groups(unpaired.choices):
            while not record.is_over:
                first, pair = record.choices[choices.start], self._picker.pick(record, choices)
                waited_s = self._clock.now() - unpaired.since
                final = final_error(unpaired.error, first, pair is not None, waited_s, self._rules)

                if final is not None:
                    self._fail(record, final)
                elif pair is None:
                    self._wait(replace(unpaired, choices=choices))
                    break
                elif self._attempts.begin(record, choices, pair):
                    self.retries.note(record, unpaired.error)
                    break

    def _wait(self, unpaired: Unpaired) -> None:
        record, first = unpaired.record, unpaired.record.choices[unpaired.choices[0]]
        self._unpaired.add(unpaired, unpaired.since, record.prompt.priority, resumes=first.was_preempted)

    def rescue(self) -> None:
        """Looks again for workers for the unpaired choices."""
        for unpaired in list(self._unpaired):
            self._unpaired.remove(unpaired)
            self._go_on(unpaired)

    # ---- messages of workers ----

    def on_prompt_logprobs(self, identity: bytes, message: PromptLogprobs) -> None:
        """Takes what the worker at `identity` tells of a prompt. Once that is whole, tokens that came before count."""
        if (reported := self._attempt_of(identity, message)) is None:
            return
        record, attempt = reported
        try:
            if record.prompt_part is None:
                raise WireError("nobody asks for log-probabilities of this prompt")
            record.prompt_part.accept(message)
        except WireError as error:
            self._refuse(record, attempt, error)
            return

        if record.prompt_missing is None:
            for other in list(record.attempts.values()):
                held, other.held = other.held, []
                for tokens in held:
                    self.on_tokens(*tokens)

    def on_tokens(self, identity: bytes, news: ChoiceTokens, stamps: tuple[Stamp, ...], num_cached: int = 0) -> None:
        """Passes on new tokens from the worker at `identity`. Invalid tokens fail the request that they name, and no
        other."""
        reported = self._attempt_of(identity, news)
        if reported is None:
            return
        record, attempt = reported
        if record.prompt_missing is not None:
            attempt.held.append(HeldNews(identity, news, stamps, num_cached))
            return
        attempt.heard.add(identity)
        record.stamps += stamps
        if news.seq == 0:  # with replayed outputs, an attempt finds the KV of the attempts before it
            record.num_cached = record.num_cached or min(num_cached, len(record.prompt.token_ids))

        try:
            delivery = record.accept(attempt, news)
            if delivery is not None and delivery.finish in (FinishReason.CANCELLED, FinishReason.PREEMPTED):
                raise WireError(f"choice {news.choice}: got finish {delivery.finish}, expected stop or length")
        except (WireError, ValueError) as error:
            self._refuse(record, attempt, error)
            return

        if delivery is None:
            return

        self.loads.first_token(attempt)

        if delivery.finish is FinishReason.STOP and record.prompt.sampling.grammar:
            self.retries.followed(record.prompt.sampling.grammar)
        if delivery.finish is not None and record.has_ended(attempt):
            self._attempts.end(record, attempt)
            if record.is_done:
                self._attempts.forget(record)

        record.listener.on_tokens(delivery)

    def _refuse(self, record: RequestRecord, attempt: Attempt, error: Exception) -> None:
        """Fails a request for which a worker has sent what makes no sense."""
        self._refusals.counts[INVALID] += 1
        log.warning("tokens refused", request_id=record.request_id, attempt=attempt.number, why=str(error))
        self._fail(record, InternalError("a worker sent invalid tokens"))

    def on_failed(self, identity: bytes, message: RequestFailed) -> None:
        """The worker at `identity` has given up an attempt."""
        if (reported := self._attempt_of(identity, message)) is not None:
            self._attempt_failed(*reported, error_from_code(message.code, message.message))

    def on_preempted(self, identity: bytes, message: Preempted) -> None:
        """The worker at `identity` has no memory for a choice any more. It begins again where there is room."""
        if (reported := self._attempt_of(identity, message)) is None:
            return
        record, attempt = reported
        if message.choice not in attempt.running or record.choices[message.choice].closed:
            return

        self._attempts.drop_preempted(record, attempt, message.choice)
        error = Preemption(f"{attempt.decode.worker_id} had no memory for it any more")
        self._go_on(Unpaired(record, [message.choice], error, self._clock.now()))

    def _attempt_of(
        self, identity: bytes, message: PromptLogprobs | ChoiceTokens | RequestFailed | Preempted
    ) -> tuple[RequestRecord, Attempt] | None:
        """The attempt that a message reports on. None if it has ended, or if another worker than `identity` serves it;
        that is counted as a refusal."""
        reported = self.requests.reported(message)
        if reported is None or identity in reported[1].identities:
            return reported
        self._refusals.note(FOREIGN, worker=identity.decode("utf-8", "replace"), request_id=message.request_id)
        return None

    # ---- workers that go ----

    def move_off(self, key: WorkerKey) -> None:
        """Gives other workers what this one, which leaves, has not begun. What no other can take stays there."""
        for record, attempt in self.requests.needing(key):
            is_whole = attempt.number in record.attempts and record.open_groups(attempt.running) == [attempt.choices]
            if attempt.heard or not is_whole:
                continue
            pair = self._picker.pick_ready(record, attempt.choices)
            if pair is not None and self._attempts.begin(record, attempt.choices, pair):
                error = WorkerLeft(f"worker {key.worker_id!r} leaves")
                self._attempts.cancel(record, attempt)
                record.note_failure(attempt, error)
                self.retries.note(record, error)

    def lost(self, key: WorkerKey, error: WorkerLost | WorkerLeft) -> None:
        """A worker is lost, or has left. Attempts that decode there have ended. One that only prefills there is left to
        its decode worker, which has been told of a loss, and cancelled there if prefill has left, or if decode goes on
        without what prefill should have told of the prompt."""
        if self._membership.losses[key].how is HowLost.ENDED:
            for record, attempt in self.requests.note_end(key):
                self._blames(record, attempt)
        for record, attempt in self.requests.needing(key):
            is_over = isinstance(error, WorkerLeft) or attempt.decode == key or record.prompt_missing is not None
            if is_over and attempt.number in record.attempts:
                if attempt.decode != key:
                    self._send(attempt.decode, CancelRequest(record.request_id, attempt.number))
                self._attempt_failed(record, attempt, error)
