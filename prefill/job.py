"""One prefill job: what decode asked for, where its computation is, and what it must be called on the way out.

What it does not know: other jobs, sockets, the engine.
"""

from dataclasses import dataclass, field

from prefill.job_states import MOVES, JobState
from protocol.messages_gateway import Stamp, WorkerAddress
from protocol.messages_handoff import PrefillJob
from runtime.state_table import advance
from scheduler.req import Req
from transfer.interface import Target


@dataclass(eq=False)
class Job:
    """`prompt` carries the row, pages and progress; `choices` are drawn from its last logits and hold nothing."""

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
        """A job as it arrives."""

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
        """Whether decode needs the KV: not when the first token is the only one."""
        return self.message.sampling.max_tokens - self.message.num_replayed > 1

    def move(self, state: JobState) -> None:
        """Advances the state machine."""
        self.state = advance(MOVES, self.state, state)

    def stamp(self, name: str, now: float, worker_id: str) -> None:
        """Notes a moment, if the client asked for a time line."""
        if self.message.timeline:
            self.stamps.append(Stamp(name, now, worker_id))
