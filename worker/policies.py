"""How a worker schedules: who waits, who is refused, and what a launch of prompts takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.errors import QueueFull
from protocol.messages_gateway import Assign
from runtime.settings import SchedulePolicy
from worker.requests import Assigned

A = TypeVar("A", bound=Assigned)


@dataclass(frozen=True)
class Policies:
    """The options of the same names in runtime/settings.py; `chunk_size` is chunked_prefill_size, and `overlap` is not
    disable_overlap_schedule."""

    overlap: bool = True
    chunk_size: int = 0  # tokens; 0: a launch takes whole prompts
    schedule_policy: SchedulePolicy = "fcfs"
    max_queued_requests: int = 2048
    max_prefill_tokens: int | None = None
    mixed_chunk_size: int | None = None  # None: not bounded further
    enable_mixed_chunk: bool = True

    def launch_tokens(self, decode_tokens: int) -> int | None:
        """Most tokens of one launch, `decode_tokens` of choices that decode included; None: one whole prompt. These
        choices decode in it, or wait for it."""
        most = self.max_prefill_tokens or self.chunk_size or None
        if not (most and decode_tokens and self.mixed_chunk_size):
            return most
        return min(most, self.mixed_chunk_size + (decode_tokens if self.enable_mixed_chunk else 0))

    def prefix(self, num_cached: Callable[[A], int]) -> Callable[[A], int] | None:
        """`num_cached`, by which a WaitingLine compares prompts, if the policy counts cached prefixes; else None."""
        return None if self.schedule_policy == "fcfs" else num_cached

    def refusal(self, assign: Assign, num_waiting: int, kind: type[QueueFull] = QueueFull) -> QueueFull | None:
        """The error if too many requests wait already. One that has begun elsewhere is never refused."""
        if num_waiting < self.max_queued_requests or assign.resumes or assign.num_replayed:
            return None
        return kind(f"the worker's waiting line is full (--max-queued-requests {self.max_queued_requests})")


DEFAULTS: Final = Policies()


def prompts_first(has_chunks: bool, has_decodes: bool, prompts_were_last: bool) -> bool:
    """Without mixed launches: whether the next one computes prompts. Prompts and decodes take turns, so neither
    starves."""
    return has_chunks and not (has_decodes and prompts_were_last)
