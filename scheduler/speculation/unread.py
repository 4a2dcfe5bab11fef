"""Rows whose last known token no draft has read: the next launch that uses the draft reads it first.

joins for the first time --proposes--> read --proposes nothing--> unread --proposes--> read
"""

from collections.abc import Sequence

from scheduler.execution.batches import ScheduleBatch
from scheduler.plan import Owner, Plan


class Unread:
    """The rows of one executor, each with its owner number. Only the scheduler thread uses it."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}  # owner number by row

    def joined(self, plan: Plan) -> None:
        """The rows of `plan` have joined."""
        self._owners |= {join.draw.row: join.draw.owner_number for join in plan.joins if join.begins}

    def begins(self, plan: Plan, running: ScheduleBatch) -> list[int]:
        """The indices of the rows whose last token the draft reads before this launch.

        If nothing is proposed, these are only the rows that have not decoded yet: what other launches without proposals
        have left is written from their own inputs (see unwritten.py).
        """
        if not plan.num_steps:
            first = len(running) - len(plan.joins)
            return [first + index for index, join in enumerate(plan.joins) if join.begins]
        unread = [at for at, (row, owner) in enumerate(running.members.owners) if self._owners.get(row) == owner]
        return [at for at in unread if running.draws[at].drafts]

    def launched(self, plan: Plan, owners: Sequence[Owner]) -> None:
        """A launch of these rows is enqueued: the draft reads what it proposes behind, and nothing else."""
        launched = dict(owners)
        if plan.num_steps:
            self._owners = {row: owner for row, owner in self._owners.items() if launched.get(row) != owner}
        else:
            self._owners |= launched
