"""When a draft writes the KV that it has put off."""

from collections.abc import Callable

import pytest

from scheduler.plan import Chunk, Operation, Plan, WriteDraft
from scheduler.planning.draft_writes import MAX_PUT_OFF, DraftWrites

QUIET, PROPOSING = Plan(1, num_decodes=2), Plan(1, num_decodes=2, num_steps=3)
PROMPT, NOBODY = Plan(1, num_decodes=2, chunks=(Chunk(1, 0, (5, 6)),)), Plan(1)


def draft_writes(lookahead: int) -> tuple[DraftWrites, list[Operation]]:
    """And the operations that it submits."""
    sent: list[Operation] = []

    def submit(made: Callable[[int], Operation]) -> int:
        sent.append(made(7))
        return 7

    return DraftWrites(lookahead, submit), sent


def writes(*plans: Plan, lookahead: int = 1) -> list[bool]:
    """After each plan, whether KV had to be written before others may have the pages; then, whether it is settled."""
    slots = []
    for count in range(len(plans) + 1):
        draft, sent = draft_writes(lookahead)
        for plan in plans[:count]:
            draft.launched(plan)
        sent.clear()
        draft.settle()
        assert sent in ([], [WriteDraft(7)])
        slots.append(bool(sent))
        sent.clear()
        draft.settle()
        assert not sent, "it is written already"
    return slots


def test_a_launch_of_decodes_that_proposes_nothing_puts_its_kv_off() -> None:
    assert writes(QUIET, QUIET) == [False, True, True]


@pytest.mark.parametrize("plan", [PROPOSING, PROMPT])
def test_a_launch_that_proposes_or_computes_prompts_writes_all_of_it(plan: Plan) -> None:
    assert writes(QUIET, plan, plan, QUIET) == [False, True, False, False, True]


def test_a_launch_without_rows_changes_nothing() -> None:
    assert writes(NOBODY, QUIET, NOBODY) == [False, False, True, True]


@pytest.mark.parametrize("lookahead", [0, 2, 3])
def test_only_a_draft_of_one_layer_puts_kv_off(lookahead: int) -> None:
    assert not any(writes(QUIET, QUIET, lookahead=lookahead))


def test_no_more_than_so_many_launches_put_it_off() -> None:
    draft, sent = draft_writes(1)
    for count in range(1, 3 * MAX_PUT_OFF + 1):
        draft.launched(QUIET)
        assert len(sent) == count // MAX_PUT_OFF
