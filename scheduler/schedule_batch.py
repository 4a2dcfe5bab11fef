"""The requests that decode together. Their tensors are kept from step to step.

`seq_lens_B` on the device and `seq_lens_cpu` on the host are always equal: every method changes both or neither.
Methods replace tensors and never write into them, because a launch in flight may hold the old ones. `Members` is
rebuilt only when a request joins or leaves; its page table, also when a longer context or more pages need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from model.inputs import int64_column
from scheduler.page_table import PageTable, owners_of
from scheduler.req import Req
from scheduler.sampling_columns import SamplingColumns

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Members:
    """Values that depend only on the requests of a batch and their order. Launches share it; nobody writes into it."""

    reqs: tuple[Req, ...]
    owners_B: Tensor  # from page_table.owners_of
    rows_cpu: IntArray
    indices_B: Tensor  # 0, 1, ...
    page_table_BP: Tensor  # grows wider when a longer context needs it
    num_growths: int  # of the page table when it was copied


@dataclass(eq=False)
class ScheduleBatch:
    """B requests, in the same order in every tensor.

    `seq_lens` counts the tokens whose KV is written by the launches enqueued so far. `input_ids_B` holds the next input
    token of each request. If only a launch in flight knows the token, it holds minus the request's row (the sentinel).
    """

    reqs: list[Req]
    rows_B: Tensor
    seq_lens_B: Tensor
    seq_lens_cpu: IntArray
    input_ids_B: Tensor
    sampling: SamplingColumns
    _members: Members | None = None

    @staticmethod
    def prebuilt(reqs: Sequence[Req], device: torch.device) -> "ScheduleBatch":
        """A batch that needs no forward: it has the KV of the prompt and of all outputs but the last."""
        seq_lens = [req.prompt_len + len(req.outputs) - req.num_replayed - 1 for req in reqs]
        return ScheduleBatch._build(reqs, seq_lens, [req.outputs[-1] for req in reqs], device)

    @staticmethod
    def launched(reqs: Sequence[Req], device: torch.device) -> "ScheduleBatch":
        """A batch whose last prompt chunk has just been enqueued. Its first outputs are still on the device."""
        return ScheduleBatch._build(reqs, [req.prompt_len for req in reqs], [-req.held.row for req in reqs], device)

    @staticmethod
    def _build(reqs: Sequence[Req], seq_lens: list[int], input_ids: list[int], device: torch.device) -> "ScheduleBatch":
        return ScheduleBatch(
            reqs=list(reqs),
            rows_B=int64_column([req.held.row for req in reqs], device),
            seq_lens_B=int64_column(seq_lens, device),
            seq_lens_cpu=np.array(seq_lens, dtype=np.int64),
            input_ids_B=int64_column(input_ids, device),
            sampling=SamplingColumns.of(reqs, device),
        )

    def __len__(self) -> int:
        return len(self.reqs)

    def advance(self) -> None:
        """Counts one more token per request. The launch being built writes its KV."""
        self.seq_lens_B = self.seq_lens_B + 1
        self.seq_lens_cpu = self.seq_lens_cpu + 1

    def members(self, table: PageTable, num_pages: int) -> Members:
        """Its Members, with a page table of at least `num_pages` columns, in which no page added since is missing."""
        found = self._members
        if found is not None:
            is_wide = found.page_table_BP.shape[1] >= num_pages
            if is_wide and found.num_growths == table.num_growths:
                return found

        page_table_BP, growths = table.req_to_page[:, :num_pages].index_select(0, self.rows_B), table.num_growths
        if found is not None:
            self._members = replace(found, page_table_BP=page_table_BP, num_growths=growths)
            return self._members

        self._members = Members(
            reqs=tuple(self.reqs),
            owners_B=owners_of(self.reqs, self.rows_B.device),
            rows_cpu=np.array([req.held.row for req in self.reqs], dtype=np.int64),
            indices_B=torch.arange(len(self.reqs), device=self.rows_B.device),
            page_table_BP=page_table_BP,
            num_growths=growths,
        )
        return self._members

    def filter(self, keep: Sequence[int]) -> None:
        """Keeps the requests at the indices `keep`, in that order."""
        if len(keep) == len(self.reqs):
            return
        keep_N = int64_column(keep, self.rows_B.device)
        self._members = None
        self.reqs = [self.reqs[index] for index in keep]
        self.rows_B = self.rows_B.index_select(0, keep_N)
        self.seq_lens_B = self.seq_lens_B.index_select(0, keep_N)
        self.seq_lens_cpu = self.seq_lens_cpu[np.asarray(keep, dtype=np.int64)]
        self.input_ids_B = self.input_ids_B.index_select(0, keep_N)
        self.sampling = self.sampling.take(keep, self.reqs)

    def merge(self, other: "ScheduleBatch") -> None:
        """Appends the requests of `other`, which is not used afterwards."""
        self._members = None
        self.reqs = self.reqs + other.reqs
        self.rows_B = torch.cat((self.rows_B, other.rows_B))
        self.seq_lens_B = torch.cat((self.seq_lens_B, other.seq_lens_B))
        self.seq_lens_cpu = np.concatenate((self.seq_lens_cpu, other.seq_lens_cpu))
        self.input_ids_B = torch.cat((self.input_ids_B, other.input_ids_B))
        self.sampling = self.sampling.concat(other.sampling, self.reqs)

    def check_mirrors(self) -> None:
        """Asserts that device and host agree. It reads the device, so it is only for tests and debug mode."""
        assert len(self.reqs) == len(self.rows_B) == len(self.seq_lens_B) == len(self.input_ids_B)
        assert self.seq_lens_B.tolist() == self.seq_lens_cpu.tolist()
        assert self.rows_B.tolist() == [req.held.row for req in self.reqs]


class Running:
    """The running batch of a decode or unified worker: requests join it, and finished ones leave before a launch.

    None when no request decodes.
    """

    def __init__(self) -> None:
        self.batch: ScheduleBatch | None = None

    @property
    def num_going_on(self) -> int:
        """Choices that still decode. Ended choices stay in the batch until the next launch is chosen."""
        return 0 if self.batch is None else sum(req.finish is None for req in self.batch.reqs)

    def join(self, batch: ScheduleBatch) -> None:
        """Adds `batch`, which decodes from the next launch on."""
        if self.batch is None:
            self.batch = batch
        else:
            self.batch.merge(batch)

    def for_next_launch(self) -> ScheduleBatch | None:
        """The batch without requests that have finished or whose last output is in flight."""
        if self.batch is None:
            return None
        keep = [
            index
            for index, req in enumerate(self.batch.reqs)
            if req.finish is None and req.num_sampled < req.sampling.max_tokens
        ]
        if not keep:
            self.batch = None
            return None
        self.batch.filter(keep)
        return self.batch
