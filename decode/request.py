"""One request on a decode worker: its Assign, its reservation and its choices."""

from dataclasses import dataclass

from decode.request_states import MOVES, DecodeState
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import PrefillJob
from runtime.state_table import advance
from worker.assigned import Assigned


@dataclass(eq=False)
class DecodeRequest(Assigned):
    """Its choices hold rows and pages from REQUESTED on. `reservation` is sent to prefill."""

    prefill: WorkerAddress
    reservation: int
    state: DecodeState = DecodeState.RESERVING
    pages_in_place: tuple[int, ...] | None = None  # the prompt's pages, if prefill may write them in place
    deadline: float = float("inf")  # for its last frame, in seconds of the worker's clock
    late: str = ""  # the error if the deadline passes
    first_tokens: tuple[int, ...] = ()  # by choice, once it is DELIVERED
    landing: int = 0  # ticket of the copies that delivered KV needs before it may be decoded; 0: none

    @property
    def job(self) -> PrefillJob:
        """The job for its prefill worker."""
        return PrefillJob(self.assign, self.reservation, self.pages_in_place)

    @property
    def gets_kv(self) -> bool:
        """Whether KV is to arrive. It is not if prefill's first token is the only one."""
        return self.assign.num_left > 1

    @property
    def is_handed_over(self) -> bool:
        """Whether it no longer depends on its prefill worker."""
        return self.state in (DecodeState.DELIVERED, DecodeState.RUNNING)

    def move(self, state: DecodeState) -> None:
        """Advances the state machine."""
        self.state = advance(MOVES, self.state, state)

    def doubt(self, deadline: float) -> None:
        """Brings the deadline forward: a damaged frame may have been the last one."""
        if deadline < self.deadline:
            self.deadline = deadline
            self.late = f"the last frame from {self.prefill.worker_id} has not come, and one was damaged on its way"
