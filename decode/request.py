"""One request on a decode worker: its Assign, its reservation and its choices."""

from dataclasses import dataclass, field

from decode.request_states import MOVES, DecodeState
from protocol.messages_gateway import Assign, Stamp, WorkerAddress
from protocol.messages_handoff import PrefillJob
from runtime.state_table import advance
from scheduler.req import Req, kv_tokens


@dataclass(eq=False)
class DecodeRequest:
    """`reqs` are its choices; they hold rows and pages from REQUESTED on. `reservation` is sent to prefill."""

    assign: Assign
    prefill: WorkerAddress
    reservation: int
    reqs: tuple[Req, ...]
    state: DecodeState = DecodeState.RESERVING
    pages_in_place: tuple[int, ...] = ()  # the prompt's pages, if prefill may write them in place
    deadline: float = float("inf")  # for its last frame, in seconds of the worker's clock
    late: str = ""  # the error if the deadline passes
    stamps: list[Stamp] = field(default_factory=list)

    @staticmethod
    def of(assign: Assign, prefill: WorkerAddress, reservation: int) -> "DecodeRequest":
        """A new request."""
        reqs = tuple(
            Req(
                assign.request_id,
                assign.attempt,
                assign.first_choice + index,
                assign.prompt_ids,
                assign.sampling,
                assign.num_replayed,
            )
            for index in range(assign.num_choices)
        )
        return DecodeRequest(assign, prefill, reservation, reqs)

    @property
    def key(self) -> tuple[str, int]:
        """(request_id, attempt)."""
        return self.assign.request_id, self.assign.attempt

    @property
    def job(self) -> PrefillJob:
        """The job for its prefill worker."""
        assign = self.assign
        return PrefillJob(
            request_id=assign.request_id,
            attempt=assign.attempt,
            reservation=self.reservation,
            prompt_ids=assign.prompt_ids,
            sampling=assign.sampling,
            num_choices=assign.num_choices,
            timeline=assign.timeline,
            first_choice=assign.first_choice,
            num_replayed=assign.num_replayed,
            pages=self.pages_in_place,
        )

    @property
    def prompt_len(self) -> int:
        """Tokens that prefill computes."""
        return len(self.assign.prompt_ids)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV that each choice may need; 0 when prefill's first token is the only one."""
        return kv_tokens(self.prompt_len, self.assign.sampling.max_tokens - self.assign.num_replayed)

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

    def stamp(self, name: str, now: float, worker_id: str) -> None:
        """Adds a stamp if the client asked for a time line."""
        if self.assign.timeline:
            self.stamps.append(Stamp(name, now, worker_id))
