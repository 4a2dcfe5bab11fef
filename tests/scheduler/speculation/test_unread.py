"""Which rows a draft reads first: those whose last known token it has not read."""

import torch

from scheduler.execution.batches import ScheduleBatch
from scheduler.plan import Draw, Join, Plan
from scheduler.speculation.unread import Unread
from tests.scheduler.building import greedy

CPU = torch.device("cpu")


def join(row: int, *, begins: bool = True, owner_number: int = 1, drafts: bool = True) -> Join:
    return Join(Draw(row, owner_number, 0, greedy(9), 0, 20, drafts), 5, 7, begins)


class Launching:
    """Applies plans as an executor does, and tells what the draft reads first."""

    def __init__(self) -> None:
        self.unread, self.running = Unread(), ScheduleBatch.of((), CPU, speculates=True)

    def launch(self, num_steps: int, *joins: Join, leaves: tuple[int, ...] = ()) -> list[int]:
        """The indices of the rows that the draft reads first."""
        plan = Plan(1, joins=joins, leaves=leaves, num_steps=num_steps)
        self.running.change(plan.leaves, plan.joins)
        self.unread.joined(plan)
        begins = self.unread.begins(plan, self.running)
        self.unread.launched(plan, self.running.members.owners)
        return begins


def test_a_row_that_joins_for_the_first_time_is_read_once() -> None:
    rows = Launching()
    assert rows.launch(3, join(1), join(2, begins=False)) == [0]
    assert rows.launch(3) == []


def test_behind_a_launch_without_proposals_every_row_is_read() -> None:
    rows = Launching()
    assert rows.launch(0, join(1), join(2, begins=False)) == [0], "the other one's token was put off by a launch before"
    assert rows.launch(0) == [] and rows.launch(0, join(3)) == [2]
    assert rows.launch(3) == [0, 1, 2]
    assert rows.launch(3) == []


def test_a_row_of_another_owner_is_not_the_one_that_was_left_unread() -> None:
    rows = Launching()
    rows.launch(0, join(1))
    assert rows.launch(3, join(1, begins=False, owner_number=2), leaves=(1,)) == []


def test_a_row_whose_pages_lack_the_drafts_kv_is_never_read_to_propose() -> None:
    rows = Launching()
    rows.launch(0, join(1, begins=False, drafts=False))
    assert rows.launch(3) == []
