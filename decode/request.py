"""One request on a decode worker: its Assign, its reservation, its transfer and its choices."""

from dataclasses import dataclass, field

from decode.request_states import MOVES, DecodeState
from protocol.messages_gateway import WorkerAddress
from protocol.messages_handoff import PrefillJob
from transfer.states import Transfer, TransferState, advance
from worker.assigned import Assigned


@dataclass(eq=False)
class DecodeRequest(Assigned):
    """Its choices hold rows and pages once its transfer is REQUESTED. `reservation` is sent to prefill."""

    prefill: WorkerAddress
    reservation: int
    state: DecodeState = DecodeState.WAITING
    transfer: Transfer = field(default_factory=Transfer)
    pages_in_place: tuple[int, ...] | None = None  # the prompt's pages, if prefill may write them in place
    deadline: float = float("inf")  # for its last frame, in seconds of the worker's clock
    late: str = ""  # the error if the deadline passes
    first_tokens: tuple[int, ...] = ()  # by choice, once its KV is delivered
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
        return self.transfer.state is TransferState.DELIVERED

    def move(self, state: DecodeState) -> None:
        """Advances the state machine."""
        self.state = advance(MOVES, self.state, state)
