"""A device in host memory: copies done at once with their checksum, and memory that processes share."""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from protocol.errors import WireError
from runtime.shared_memory import SharedMemory, open_shared
from transfer.in_place.device_pools import FIRST, SECOND, STEP, WRAP, Tiles
from transfer.offers import DeviceHandle

_HALF: Final = 64  # hexadecimal digits of a process id in a handle; as many follow for a descriptor


def total_of(words_N: Tensor) -> int:
    """The device checksum of words in the order of the prompt. What a kernel computes must equal this."""
    position_N = torch.arange(words_N.numel(), dtype=torch.int64, device=words_N.device)
    x_N = words_N.to(torch.int64) ^ (position_N * STEP)  # int64 wraps on overflow, on every device
    x_N = x_N * FIRST
    x_N = (x_N ^ ((x_N >> 32) & 0xFFFFFFFF)) * SECOND  # the mask makes it a shift that brings in zeros
    x_N = x_N ^ ((x_N >> 29) & 0x7FFFFFFFF)
    return int(x_N.sum()) & WRAP


class HostCopies:
    """Copies on a CPU, done at once: the measure of what a device must do."""

    def begin(self, source_LW: Tensor, target_LW: Tensor | None, tiles: Tiles) -> "Moved":
        """See Copies."""
        num_layers, num_words = source_LW.shape[0], tiles.num_words
        words_LUW = source_LW.view(num_layers, -1, num_words)[:, torch.from_numpy(tiles.sources_U)]
        if target_LW is not None:
            target_LW.view(num_layers, -1, num_words)[:, torch.from_numpy(tiles.targets_U)] = words_LUW
        return Moved(tuple(total_of(words_UW.flatten()) for words_UW in words_LUW))


@dataclass(frozen=True)
class Moved:
    """Work that has completed."""

    totals: Sequence[int]
    done: bool = True

    def wait(self) -> None:
        """There is nothing to wait for."""


class LocalIpc:
    """Memory that one process shares with itself."""

    def __init__(self) -> None:
        self._exported: dict[str, Tensor] = {}

    def export(self, memory: Tensor) -> DeviceHandle:
        """See Ipc."""
        handle = f"{len(self._exported):0128x}"
        self._exported[handle] = memory
        return DeviceHandle(handle, 0, memory.numel() * memory.element_size())

    def open(self, offered: DeviceHandle) -> "LocalMemory":
        """See Ipc."""
        if offered.handle not in self._exported:
            raise WireError("nobody exports such memory")
        return LocalMemory(self._exported[offered.handle])


class HostIpc:
    """Memory that processes of one host share. `shared` holds what is exported."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared

    def export(self, memory: Tensor) -> DeviceHandle:
        """See Ipc."""
        handle = f"{os.getpid():0{_HALF}x}{self._shared.fd:0{_HALF}x}"
        return DeviceHandle(handle, 0, memory.numel() * memory.element_size())

    def open(self, offered: DeviceHandle) -> "LocalMemory":
        """See Ipc."""
        pid, fd = int(offered.handle[:_HALF], 16), int(offered.handle[_HALF:], 16)
        try:
            ours = open_shared(pid, fd, offered.num_bytes)
        except OSError as error:
            raise WireError(f"shared memory cannot be opened: {error}") from error
        mapping = mmap.mmap(ours, offered.num_bytes)
        os.close(ours)
        return LocalMemory(torch.frombuffer(mapping, dtype=torch.uint8))


@dataclass(frozen=True, eq=False)
class LocalMemory:
    """See Opened."""

    memory: Tensor

    def close(self) -> None:
        """Does nothing: a mapping is freed with the last tensor that uses it."""
