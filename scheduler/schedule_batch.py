"""The rows that decode together. Their tensors are kept from step to step.

`seq_lens_B` on the device and `seq_lens_cpu` on the host are always equal: every method changes both or neither.
Methods replace tensors and never write into them, because a launch in flight may hold the old ones. `Members` is
rebuilt only when a row joins or leaves; the rows' page table, also when a longer context or more pages need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.inputs import int64_column
from scheduler.page_table import IntArray, PageTable, owners_of
from scheduler.plan import Draw, Join, Owner
from scheduler.sampling_columns import SamplingColumns


@dataclass(frozen=True)
class Members:
    """Values that depend only on the rows of a batch and their order. Launches share it and never write into it."""

    owners: tuple[Owner, ...]
    owners_B: Tensor  # from page_table.owners_of
    rows_cpu: IntArray
    indices_B: Tensor  # 0, 1, ...
    sentinels_B: Tensor  # minus the rows


@dataclass(eq=False)
class ScheduleBatch:
    """B rows, in the same order in every tensor. B may be 0.

    `seq_lens` counts the tokens whose KV is written by the launches enqueued so far; `positions` is what it was before
    the last advance(). `input_ids_B` holds the next input token of each row. If only a launch in flight knows it, it
    holds minus the row (the sentinel).
    """

    rows_B: Tensor
    seq_lens_B: Tensor
    seq_lens_cpu: IntArray
    positions_B: Tensor
    positions_cpu: IntArray
    longest: int  # the greatest of seq_lens; 0 without rows
    input_ids_B: Tensor
    sampling: SamplingColumns
    _members: Members | None = None
    _pages: tuple[Tensor, int] | None = None  # (B, P) of the page table, and its num_growths when it was copied

    @staticmethod
    def of(joins: Sequence[Join], device: torch.device) -> "ScheduleBatch":
        """A batch of the rows that join."""
        draws, seq_lens = [join.draw for join in joins], [join.seq_len for join in joins]
        input_ids = [-join.draw.row if join.input_id is None else join.input_id for join in joins]
        seq_lens_B, seq_lens_cpu = int64_column(seq_lens, device), np.array(seq_lens, dtype=np.int64)
        return ScheduleBatch(
            rows_B=int64_column([draw.row for draw in draws], device),
            seq_lens_B=seq_lens_B,
            seq_lens_cpu=seq_lens_cpu,
            positions_B=seq_lens_B,
            positions_cpu=seq_lens_cpu,
            longest=max(seq_lens, default=0),
            input_ids_B=int64_column(input_ids, device),
            sampling=SamplingColumns.of(draws, device),
        )

    @property
    def draws(self) -> Sequence[Draw]:
        """What is drawn for each row."""
        return self.sampling.draws

    def __len__(self) -> int:
        return len(self.sampling.draws)

    def change(self, leaves: Sequence[int], joins: Sequence[Join]) -> None:
        """Removes the rows `leaves`, then appends those that join."""
        if leaves:
            leaving = set(leaves)
            self.filter([index for index, draw in enumerate(self.draws) if draw.row not in leaving])
        if joins:
            self.merge(ScheduleBatch.of(joins, self.rows_B.device))

    def advance(self) -> None:
        """Counts one more token per row. The launch being built writes its KV."""
        self.positions_B, self.positions_cpu = self.seq_lens_B, self.seq_lens_cpu
        self.seq_lens_B = self.seq_lens_B + 1
        self.seq_lens_cpu = self.seq_lens_cpu + 1
        self.longest += bool(self.draws)

    @property
    def members(self) -> Members:
        """Its Members, made when they are first asked for."""
        if self._members is None:
            self._members = Members(
                owners=tuple([(draw.row, draw.generation) for draw in self.draws]),
                owners_B=owners_of(self.draws, self.rows_B.device),
                rows_cpu=np.array([draw.row for draw in self.draws], dtype=np.int64),
                indices_B=torch.arange(len(self.draws), device=self.rows_B.device),
                sentinels_B=-self.rows_B,
            )
        return self._members

    def page_table(self, table: PageTable, num_pages: int) -> Tensor:
        """(B, P) page numbers of its rows: P is at least `num_pages`, and no page added since is missing."""
        found = self._pages
        if found is None or found[0].shape[1] < num_pages or found[1] != table.num_growths:
            found = self._pages = table.req_to_page[:, :num_pages].index_select(0, self.rows_B), table.num_growths
        return found[0]

    def filter(self, keep: Sequence[int]) -> None:
        """Keeps the rows at the indices `keep`, in that order."""
        keep_N = int64_column(keep, self.rows_B.device)
        self._members = self._pages = None
        self.rows_B = self.rows_B.index_select(0, keep_N)
        self.seq_lens_B = self.seq_lens_B.index_select(0, keep_N)
        self.seq_lens_cpu = self.seq_lens_cpu[np.asarray(keep, dtype=np.int64)]
        self.longest = max(self.seq_lens_cpu.tolist(), default=0)  # numpy's own maximum takes ten times as long
        self.input_ids_B = self.input_ids_B.index_select(0, keep_N)
        self.sampling = self.sampling.take(keep)

    def merge(self, other: "ScheduleBatch") -> None:
        """Appends the rows of `other`, which is not used afterwards."""
        self._members = self._pages = None
        self.rows_B = torch.cat((self.rows_B, other.rows_B))
        self.seq_lens_B = torch.cat((self.seq_lens_B, other.seq_lens_B))
        self.seq_lens_cpu = np.concatenate((self.seq_lens_cpu, other.seq_lens_cpu))
        self.longest = max(self.longest, other.longest)
        self.input_ids_B = torch.cat((self.input_ids_B, other.input_ids_B))
        self.sampling = self.sampling.concat(other.sampling)

    def check_mirrors(self) -> None:
        """Asserts that device and host agree. It reads the device, so it is only for tests and debug mode."""
        assert len(self.draws) == len(self.rows_B) == len(self.seq_lens_B) == len(self.input_ids_B)
        assert self.seq_lens_B.tolist() == self.seq_lens_cpu.tolist()
        assert self.rows_B.tolist() == [draw.row for draw in self.draws]
