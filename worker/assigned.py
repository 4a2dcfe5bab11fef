"""One request on a worker: its Assign, its choices and its stamps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.messages_gateway import Assign, FinishReason, Stamp
from scheduler.planner import ExtendChunk, Planner, plan_chunks
from scheduler.req import Req
from scheduler.request_check import replay_fault, request_fault, transfer_fault


@dataclass(eq=False)
class Assigned:
    """A request on a worker. Roles extend it with their own progress. `reqs` are the choices, in order."""

    assign: Assign
    reqs: tuple[Req, ...] = field(init=False)
    stamps: list[Stamp] = field(init=False, default_factory=list)  # for the client, if it asked for a time line
    to_host: bool = field(init=False, default=False)  # the prompt's KV is needed in host memory, to be sent from there
    moments: dict[str, float] = field(init=False, default_factory=dict)  # of this worker's stamps, by their names

    def __post_init__(self) -> None:
        assign = self.assign
        self.reqs = tuple(
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

    @property
    def key(self) -> tuple[str, int]:
        """(request_id, attempt)."""
        return self.assign.key

    @property
    def prompt_len(self) -> int:
        """Tokens to compute before the first one is drawn."""
        return len(self.assign.prompt_ids)

    @property
    def prompt(self) -> Req:
        """The first choice. Where the prompt is computed, it holds the prompt's row, pages and progress."""
        return self.reqs[0]

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no launch computes yet."""
        return self.prompt_len - self.prompt.num_computed

    @property
    def has_ended(self) -> bool:
        """Whether every choice has ended."""
        return all(req.finish is not None for req in self.reqs)

    def cancel(self, choice: int = -1) -> list[Req]:
        """Ends one choice, or all of them if it is -1. Returns those that have not ended before."""
        cancelled = [req for req in self.reqs if req.finish is None and choice in (-1, req.choice)]
        for req in cancelled:
            req.finish = FinishReason.CANCELLED
        return cancelled


def next_chunks(requests: Sequence[Assigned], chunk_size: int, num_decodes: int = 0) -> tuple[ExtendChunk, ...]:
    """The prompt chunks of the next launch, which decodes `num_decodes` tokens too. The oldest request comes first."""
    if not requests:
        return ()
    chunks: list[ExtendChunk] = []
    sizes = plan_chunks([request.prompt_left for request in requests], chunk_size, num_decodes)
    for request, size in zip(requests, sizes, strict=True):
        prompt, end = request.prompt, request.prompt.num_computed + size
        samples = [req for req in request.reqs if req.finish is None] if end == prompt.prompt_len else []
        if size:
            chunks.append(ExtendChunk(prompt, prompt.num_computed, end, tuple(samples), request.to_host))
    return tuple(chunks)


def assign_fault(assign: Assign, planner: Planner, reservation: int = 0) -> str | None:
    """The first field of `assign` that a worker with this planner cannot take, in one sentence; or None."""
    prompt, sampling, n = assign.prompt_ids, assign.sampling, assign.num_choices
    return (
        request_fault(prompt, sampling, n, vocab_size=planner.vocab_size, max_choices=planner.book.max_requests)
        or replay_fault(prompt, sampling, n, assign.first_choice, assign.num_replayed)
        or transfer_fault(assign.attempt, reservation)
    )
