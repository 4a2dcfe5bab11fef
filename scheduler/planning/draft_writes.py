"""When a draft writes KV that it has put off: before others read its pages or own them.

A launch of decodes alone that proposes nothing puts off the draft's KV of its tokens: for a few tokens the calls cost
more than the computing. A launch that proposes or computes prompts writes all of it, and so does WriteDraft:

    none is put off --decodes alone, nothing proposed--> of 1, 2, ... launches --MAX_PUT_OFF, or settle--> none
                                                                  '--a launch that proposes, a chunk---^

A WriteDraft that fails ends the worker, as every copy does: what it should have written is unknown.
"""

from collections.abc import Callable
from typing import Final

from scheduler.plan import Operation, Plan, WriteDraft

MAX_PUT_OFF: Final = 8  # launches whose KV waits


class DraftWrites:
    """Only a draft of one layer puts off its KV. `lookahead`: the layout's. `submit`: see KvCopies."""

    def __init__(self, lookahead: int, submit: Callable[[Callable[[int], Operation]], int]) -> None:
        self._puts_off = lookahead == 1
        self._submit = submit
        self._num_launches = 0  # whose KV is put off

    def launched(self, plan: Plan) -> None:
        """`plan` was submitted."""
        if not self._puts_off or not plan.drafts:
            return
        if plan.num_steps or plan.chunks:
            self._num_launches = 0
        elif plan.num_decodes:
            self._num_launches += 1
        if self._num_launches == MAX_PUT_OFF:
            self.settle()

    def settle(self) -> None:
        """Has all KV written before the operations that follow."""
        if self._num_launches:
            self._submit(WriteDraft)
            self._num_launches = 0
