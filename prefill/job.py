"""One job on a prefill worker: its PrefillJob message and its progress."""

from dataclasses import dataclass, field

from prefill.job_states import MOVES, JobState
from protocol.errors import BatonError
from protocol.messages_gateway import ChoiceTokens, FirstToken, Stamp, WorkerAddress
from protocol.messages_handoff import JobFailed, JobFinishedEarly, PrefillJob
from runtime.state_table import advance
from scheduler.req import Req
from transfer.sending.transfer import Target


@dataclass(eq=False)
class Job:
    """`prompt` holds the row, pages and progress. `choices` are drawn from its last logits and hold no memory."""

    message: PrefillJob
    peer: WorkerAddress
    prompt: Req
    choices: tuple[Req, ...]
    state: JobState = JobState.WAITING
    credit_returned: bool = False
    deadline: float = float("inf")  # for KvDelivered, in seconds of the worker's clock
    stamps: list[Stamp] = field(default_factory=list)

    @staticmethod
    def of(message: PrefillJob, peer: WorkerAddress) -> "Job":
        """A new job."""

        def req(choice: int) -> Req:
            return Req(
                message.request_id, message.attempt, choice, message.prompt_ids, message.sampling, message.num_replayed
            )

        first = message.first_choice
        return Job(message, peer, req(first), tuple(req(first + index) for index in range(message.num_choices)))

    @property
    def target(self) -> Target:
        """The name of its transfer."""
        return Target(self.peer, self.message.reservation, self.message.attempt, self.message.pages)

    @property
    def sends_kv(self) -> bool:
        """Whether decode needs the KV. It does not if the first token is the only one."""
        return self.message.sampling.max_tokens - self.message.num_replayed > 1

    @property
    def first_token(self) -> FirstToken:
        """The message with the first token of every choice, once these are drawn."""
        choices = tuple(
            ChoiceTokens(
                request_id=req.request_id,
                attempt=req.attempt,
                choice=req.choice,
                seq=req.num_replayed,
                token_ids=(req.outputs[-1],),
                finish=req.finish or "",
            )
            for req in self.choices
        )
        return FirstToken(choices, tuple(self.stamps))

    @property
    def finished_early(self) -> JobFinishedEarly:
        """The message that the first token has ended every choice."""
        return JobFinishedEarly(
            request_id=self.message.request_id,
            attempt=self.message.attempt,
            reservation=self.message.reservation,
            first_tokens=tuple(req.outputs[-1] for req in self.choices),
            stamps=tuple(self.stamps),
        )

    def move(self, state: JobState) -> None:
        """Advances the state machine."""
        self.state = advance(MOVES, self.state, state)

    def stamp(self, name: str, now: float, worker_id: str) -> None:
        """Adds a stamp if the client asked for a time line."""
        if self.message.timeline:
            self.stamps.append(Stamp(name, now, worker_id))


def job_failed(message: PrefillJob, error: BatonError) -> JobFailed:
    """The answer to a job that prefill cannot finish."""
    return JobFailed(
        request_id=message.request_id,
        attempt=message.attempt,
        reservation=message.reservation,
        code=error.code,
        message=error.message,
    )
