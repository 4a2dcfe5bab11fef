"""Shared memory of a host in place of device memory, so that cuda_ipc.py runs without a device."""

import mmap
import os
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from protocol.errors import WireError
from runtime.shared_memory import SharedMemory, open_shared
from transfer.offers import DeviceHandle

_HALF: Final = 64  # hexadecimal digits of the process id; as many follow for the descriptor


class HostIpc:
    """See transfer.in_place.device_pools.Ipc. `shared` holds the exported memory."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared

    def export(self, memory: Tensor) -> DeviceHandle:
        """See Ipc."""
        handle = f"{os.getpid():0{_HALF}x}{self._shared.fd:0{_HALF}x}"
        return DeviceHandle(handle, 0, memory.numel() * memory.element_size())

    def open(self, offered: DeviceHandle) -> "MappedMemory":
        """See Ipc."""
        pid, fd = int(offered.handle[:_HALF], 16), int(offered.handle[_HALF:], 16)
        try:
            ours = open_shared(pid, fd, offered.num_bytes)
        except OSError as error:
            raise WireError(f"shared memory cannot be opened: {error}") from error
        mapping = mmap.mmap(ours, offered.num_bytes)
        os.close(ours)
        return MappedMemory(torch.frombuffer(mapping, dtype=torch.uint8))


@dataclass(frozen=True, eq=False)
class MappedMemory:
    """See transfer.in_place.device_pools.Opened."""

    memory: Tensor

    def close(self) -> None:
        """Does nothing: the mapping is freed with the last tensor that uses it."""
