"""KV that a prefill worker's device writes into decode's device memory by CUDA IPC: the copies on a stream.

Copies run on their own stream, with a higher priority than the model's, so that they run beside its kernels. They do
not wait for the model's stream: the host has seen by an event that the KV is written. No event crosses processes:
prefill sends the header once the host has seen the event after the copy, and decode launches a reader only after that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from protocol.errors import WireError
from protocol.kv_layout import LayerLayout
from transfer.in_place.cuda_driver import CudaIpc
from transfer.in_place.device_pools import WORDS, WRAP, AtDevice, DevicePages, Units, word_bytes

HIGH_PRIORITY: Final = -1


def at_device(pages: DevicePages) -> AtDevice:
    """The means to move KV to or from these pages by CUDA IPC. WireError names what is missing."""
    memory = pages.device_bytes
    copies = CudaCopies(memory.device)
    for layer in dict.fromkeys(pages.layout.group_layouts):
        copies.warm_up(layer)
    return AtDevice(pages, copies, CudaIpc(memory.device))


class CudaCopies:
    """See device_pools.Copies."""

    def __init__(self, device: torch.device) -> None:
        """WireError if the kernel is not available."""
        try:
            self._kernel = import_module("transfer.in_place.device_moves_triton")
        except ImportError as error:
            raise WireError(f"copies on a device need triton: {error}") from error
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)
        self._tables: WeakKeyDictionary[Units, Tensor] = WeakKeyDictionary()

    def warm_up(self, layout: LayerLayout) -> None:
        """Compiles the kernel for whole pages and for single tokens, to write and to read. Blocks."""
        word = word_bytes(layout)
        page_W = torch.zeros(layout.page_bytes // word, dtype=WORDS[word], device=self._device)
        torch.cuda.synchronize(self._device)  # it was zeroed on another stream
        for num_words in (page_W.numel(), layout.token_bytes // word):
            unit = Units(num_words, np.zeros(1, np.int64), np.zeros(1, np.int64))
            for target_W in (torch.empty_like(page_W), None):
                self.begin(page_W, target_W, unit).wait()

    def begin(self, source_W: Tensor, target_W: Tensor | None, units: Units) -> "CudaMoving":
        """See Copies."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            table_2U, num_sums = self._table(units), self._kernel.NUM_SUMS
            sums_S = torch.zeros(num_sums, dtype=torch.int64, device=self._device)
            self._kernel.launch(source_W, target_W, table_2U, units.num_words, sums_S)
            read_S = torch.empty(num_sums, dtype=torch.int64, pin_memory=True)
            read_S.copy_(sums_S, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return CudaMoving(event, read_S, (table_2U, sums_S))

    def _table(self, units: Units) -> Tensor:
        """The units' numbers on the device, kept for the next layers."""
        if (table_2U := self._tables.get(units)) is None:
            pinned_2U = torch.from_numpy(np.stack([units.sources_U, units.targets_U])).pin_memory()
            table_2U = self._tables[units] = pinned_2U.to(self._device, non_blocking=True)
        return table_2U


@dataclass(frozen=True, eq=False)
class CudaMoving:
    """See device_pools.Moving. `used` keeps tensors alive while the device needs them."""

    event: torch.cuda.Event
    read_S: Tensor
    used: Sequence[Tensor]

    @property
    def done(self) -> bool:
        """Whether the device has reached the event after the copy."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Blocks until `done`."""
        self.event.synchronize()

    @property
    def total(self) -> int:
        """The sum of all programs' shares."""
        assert self.done, "the device has not computed the sum yet"
        shares: list[int] = self.read_S.tolist()
        return sum(shares) & WRAP
