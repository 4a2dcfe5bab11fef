"""Starts and ends attempts: the messages to their workers, and what they count for there."""

from collections.abc import Callable

from gateway.routing.attempt_loads import AttemptLoads
from gateway.routing.members import WorkerKey
from gateway.routing.pairing import Pair
from gateway.routing.requests import Attempt, RequestRecord, Requests
from protocol.messages_gateway import CancelRequest, ToWorker
from protocol.worker_facts import Stamp
from runtime.clock import Clock

GATEWAY = "gateway"  # the worker name in the gateway's own stamps


class Attempts:
    """The attempts of all requests in flight, and the loads that they make. `send` returns False if that worker is not
    connected. Then `lose` is called."""

    def __init__(
        self, clock: Clock, send: Callable[[WorkerKey, ToWorker], bool], lose: Callable[[WorkerKey], None]
    ) -> None:
        self.requests, self.loads = Requests(), AttemptLoads()
        self._clock, self._send, self._lose = clock, send, lose

    def begin(self, record: RequestRecord, choices: range, pair: Pair) -> bool:
        """Starts an attempt. False if the worker turns out to be gone; the worker is then lost."""
        prefill, key = pair.prefill, pair.decode.key
        assigned_at = self._clock.now()
        attempt = record.next_attempt(choices, key, prefill.key if prefill else None)
        if not self._send(key, record.message(attempt, prefill.registered.address if prefill else None)):
            self._lose(key)
            return False

        self.requests.begin(record, attempt)
        self.loads.begin(attempt, pair)
        if prefill is not None:
            prefill.prefixes.expect(record.prefixes)
        record.stamps.append(Stamp("assigned", assigned_at, GATEWAY))
        return True

    def cancel(self, record: RequestRecord, attempt: Attempt, number: int = -1) -> None:
        """Tells the attempt's worker to drop one choice, or (-1) the whole attempt."""
        is_whole = number < 0 or record.has_ended(attempt)
        self._send(attempt.decode, CancelRequest(record.request_id, attempt.number, -1 if is_whole else number))
        if is_whole:
            self.end(record, attempt)

    def cancel_choice(self, record: RequestRecord, number: int) -> None:
        """Closes an open choice, and tells the workers that run it."""
        record.choices[number].close()
        for attempt in list(record.attempts.values()):
            if number in attempt.running:
                self.cancel(record, attempt, number)

    def end(self, record: RequestRecord, attempt: Attempt) -> None:
        """Takes the attempt's load off its workers. Later messages of the attempt are dropped."""
        if record.attempts.pop(attempt.number, None) is not None:
            self.loads.end(attempt)

    def drop_preempted(self, record: RequestRecord, attempt: Attempt, number: int) -> None:
        """A preempted choice leaves the attempt."""
        record.note_preempted(attempt, number)
        if record.has_ended(attempt):
            self.end(record, attempt)
        else:
            self.loads.one_choice_less(attempt)

    def forget(self, record: RequestRecord) -> None:
        """Ends a request: cancels what still runs of it and drops its load."""
        for attempt in list(record.attempts.values()):
            self.cancel(record, attempt)
        self.requests.remove(record)
