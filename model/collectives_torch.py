"""The collectives of ranks that compute on GPUs, by torch.distributed with NCCL.

Only tensors are sent. A gather sends a copy of this rank's tensor to each rank: both are one all-to-all.
Shapes: R ranks, P tokens of each rank, padded; E hidden.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from model.collectives import EXCHANGE, GATHER, Calls, Tag, check_tags
from model.device_calls import DeviceCalls
from protocol.errors import GroupBroken
from protocol.messages_group import GroupPlace, StepShape

LOOPBACK: Final = "lo"
WHY_CHARS: Final = 200


class TorchCollectives:
    """See Collectives. One thread calls it; `doing` may be read by another one.

    With `debug` the ranks compare tags before each call, but not in steps of graphs: a graph has recorded the calls
    alone. Without, a rank that has lost the others is noticed when the sizes differ, or when it does not come.
    """

    def __init__(self, group: Any, place: GroupPlace, device: torch.device, *, debug: bool = False) -> None:
        """`group` is a process group of torch."""
        self.rank, self.size = place.rank, place.size
        self._group: Any = group  # None once closed
        self._device, self._debug = device, debug
        self._calls = Calls()
        self._device_calls = DeviceCalls(device) if device.type == "cuda" else None

    @property
    def doing(self) -> str:
        """The call that this rank is in, as "gather 3 of step 17"; "" between calls. On a GPU it is the call that the
        stream has reached; within a graph that cannot be told."""
        tag = self._calls.current if self._device_calls is None else self._device_calls.current
        return "" if tag is None else str(tag)

    @property
    def waits(self) -> bool:
        """Whether a device is in a call. It then has nothing to compute, and waits for other ranks."""
        return self._device_calls is not None and self._device_calls.current is not None

    def gather(self, own_PE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        return self._call(GATHER, own_PE.expand(self.size, *own_PE.shape), step)

    def exchange(self, parts_RPE: Tensor, step: StepShape) -> Tensor:
        """See Collectives."""
        return self._call(EXCHANGE, parts_RPE, step)

    def close(self) -> None:
        """Lets the group go. It never waits: where a call has not returned, connections stay until the process ends."""
        group, self._group = self._group, None
        if group is not None and self._calls.current is not None:
            group.abort()

    def _call(self, operation: int, parts_RPE: Tensor, step: StepShape) -> Tensor:
        tag = self._calls.enter(operation, parts_RPE, step)
        try:
            if self._debug and not step.graphs:
                self._check(tag)
            with self._queued(tag):
                return self._all_to_all(parts_RPE)
        except GroupBroken:
            raise
        except RuntimeError as error:  # of torch: a rank has gone, or does not come
            raise GroupBroken(f"rank {self.rank}: {tag} has failed: {why(error)}") from error
        finally:
            self._calls.leave()

    def _all_to_all(self, parts: Tensor) -> Tensor:
        """[r] is part [own rank] of rank r. It blocks the stream; with gloo, as tests have it, this thread."""
        group = self._group  # held until the call has returned: its end would wait for the call
        if group is None:
            raise GroupBroken(f"rank {self.rank} has left its group")
        given = parts.contiguous()
        taken = torch.empty_like(given)
        group.alltoall_base(taken, given, [], []).wait()
        return taken

    def _queued(self, tag: Tag) -> AbstractContextManager[None]:
        """A graph keeps no events that the host may ask."""
        return nullcontext() if self._device_calls is None or self._is_capturing else self._device_calls.queued(tag)

    @property
    def _is_capturing(self) -> bool:
        """Whether a graph is captured."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _check(self, own: Tag) -> None:
        """GroupBroken if the ranks are not at the same call."""
        own_5 = torch.tensor(own, dtype=torch.int64, device=self._device)
        check_tags([Tag(*tag) for tag in self._all_to_all(own_5.expand(self.size, -1)).tolist()])


def open_nccl(store: Any, place: GroupPlace, timeout_s: float) -> Any:
    """The process group, once all ranks have met at the store. RuntimeError if they cannot connect."""
    os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return dist.ProcessGroupNCCL(store, place.rank, place.size, options)


def why(error: RuntimeError) -> str:
    """The first sentence of what torch says, without the place in its source."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    tag, _, behind = said.partition("] ")
    return (behind if tag.startswith("[/") else said).partition(". ")[0][:WHY_CHARS]
