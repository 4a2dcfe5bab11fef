"""How old the KV in cached pages is: after a flush, nobody may find what was computed before it, nor what was computed
from that.

KV that a prefill worker hands over is as old as it was there.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from protocol.kv_layout import full_pages
from scheduler.planning.kv_manager import Holding
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.explore_handoff.agenda import Agenda

Attempt = tuple[str, int]
Written = tuple[float, Attempt]  # when, or before, and for whom


class Vintages:
    """`flushed_at` is when the newest flush began that is over. `happened` counts who found some at either role."""

    def __init__(self, agenda: Agenda, happened: Counter[str], is_member: Callable[[int], bool]) -> None:
        self.flushed_at = -inf
        self._agenda = agenda
        self._happened = happened
        self._is_member = is_member
        self._at_prefill: dict[Attempt, float] = {}  # when the oldest KV was written from which its prompt was computed

    def watch(self, planner: Planner, instance: Callable[[], int], *, is_prefill: bool) -> None:
        """Notes every admission of a planner, and checks what it finds. Nobody waits for a worker that is no member:
        the `instance` that it is at that time."""
        admit, written, born = planner.admit, dict[int, Written](), dict[int, Written]()  # by page; by row

        def admitted(reqs: Sequence[Req], *args: Any, **more: Any) -> bool:
            if not admit(reqs, *args, **more):
                return False
            first = reqs[0]
            attempt, held = (first.request_id, first.attempt), first.held
            num_found = full_pages(held.num_cached, planner.kv_manager.page_size)
            ages = [self._age(*written[page]) for page in held.pages[:num_found]]
            if ages:
                self._happened["found at prefill" if is_prefill else "found at decode"] += 1
                what = f"{first.request_id} finds KV from {min(ages):.4f}, a flush of {self.flushed_at:.4f} is over"
                assert min(ages) >= self.flushed_at or not self._is_member(instance()), what

            age = min([self._agenda.now, *ages])
            if is_prefill:
                self._at_prefill[attempt] = age
            for req in reqs:
                born[req.held.row] = age, attempt
                written.update((page, (age, attempt)) for page in req.held.pages[num_found:])
            return True

        spill, seat, spilled = planner.spill, planner._seat, dict[Req, Written]()

        def goes(req: Req) -> bool:
            age = born[req.held.row]
            if went := spill(req):
                spilled[req] = age
            return went

        def seated(req: Req, holding: Holding) -> None:
            seat(req, holding)
            if req in spilled:  # it comes back with KV that is as old as when it left
                born[holding.row] = spilled.pop(req)
                written.update((page, born[holding.row]) for page in holding.pages)

        grow = planner.kv_manager.grow

        def grown(holding: Holding, num_tokens: int) -> list[int] | None:
            added = grow(holding, num_tokens)
            written.update((page, born[holding.row]) for page in added or ())
            return added

        planner.admit = admitted  # type: ignore[method-assign]
        planner.spill = goes  # type: ignore[method-assign]
        planner._seat = seated  # type: ignore[method-assign]
        planner.kv_manager.grow = grown  # type: ignore[method-assign]

    def _age(self, written: float, attempt: Attempt) -> float:
        return min(written, self._at_prefill.get(attempt, inf))
