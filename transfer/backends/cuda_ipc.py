"""KV that a prefill worker's device writes into decode's memory by CUDA IPC: the mapping, and copies on a stream.

A handle here is an address there. The driver is called through ctypes. torch's own functions are private and made for
queues between processes that torch started: they count references in named files, which outlive a killed process. The
driver's functions are public and unchanged since CUDA 4.1. A handle stands for a whole allocation, so the memory's
offset in it is sent along. torch's expandable segments have no such handle.

Copies run on their own stream, with a higher priority than the model's, so that they run beside its kernels. They do
not wait for the model's stream: the host has seen by an event that the KV is written. No event crosses processes:
prefill sends the header once the host has seen the event after the copy, and decode launches a reader only after that.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from protocol.errors import WireError
from protocol.kv_layout import LayerLayout
from transfer.in_place.device_pools import WORDS, WRAP, AtDevice, DevicePages, Tiles, word_bytes
from transfer.offers import DeviceHandle

HANDLE_BYTES: Final = 64
ALIGNED_BYTES: Final = max(WORDS)  # a device fails for good when a kernel reaches for a word at another address
_LIBRARY: Final = "libcuda.so.1"
_ENABLE_PEER_ACCESS: Final = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag
_DEVICE_ORDINAL: Final = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class _Handle(ctypes.Structure):
    """CUipcMemHandle. It is passed by value."""

    _fields_ = (("reserved", c_ubyte * HANDLE_BYTES),)


_ARGUMENTS: Final[dict[str, list[Any]]] = {
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuMemGetAddressRange_v2": [POINTER(c_uint64), POINTER(c_size_t), c_uint64],
    "cuIpcGetMemHandle": [POINTER(_Handle), c_uint64],
    "cuIpcOpenMemHandle_v2": [POINTER(c_uint64), _Handle, c_uint],
    "cuIpcCloseMemHandle": [c_uint64],
    "cuPointerGetAttribute": [POINTER(c_int), c_int, c_uint64],
}


class CudaIpc:
    """The driver. The device's context must be current on this thread: torch has allocated memory there."""

    def __init__(self, device: torch.device, library: Any = None) -> None:
        """WireError if there is no driver. Tests pass a `library`."""
        self._device = device
        try:
            self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        except OSError as error:
            raise WireError(f"there is no CUDA driver: {error}") from error
        for name, arguments in _ARGUMENTS.items():
            getattr(self._library, name).argtypes = arguments

    def export(self, memory: Tensor) -> DeviceHandle:
        """The handle by which another process maps `memory` (contiguous) while it exists here. WireError names why
        there is none."""
        base, size, handle = c_uint64(), c_size_t(), _Handle()
        address, num_bytes = memory.data_ptr(), memory.numel() * memory.element_size()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        assert base.value <= address and address + num_bytes <= base.value + size.value, "the memory is one allocation"
        self._call("cuIpcGetMemHandle", byref(handle), base)
        return DeviceHandle(bytes(handle.reserved).hex(), address - base.value, num_bytes)

    def open(self, offered: DeviceHandle) -> "OpenedMemory":
        """Maps what another process exports. WireError names why it cannot."""
        handle, base = _Handle(), c_uint64()
        handle.reserved[:] = bytes.fromhex(offered.handle)
        self._call("cuIpcOpenMemHandle_v2", byref(base), handle, _ENABLE_PEER_ACCESS)
        try:
            self._check_inside(base.value, offered)
            return OpenedMemory(self._tensor(base.value + offered.offset, offered.num_bytes), self, base.value)
        except WireError:
            self.close(base.value)
            raise

    def _check_inside(self, base: int, offered: DeviceHandle) -> None:
        """WireError unless the offered bytes are inside the allocation that was mapped at `base`."""
        start, size = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(start), byref(size), base)
        num_bytes = start.value + size.value - base
        first, end = offered.offset, offered.offset + offered.num_bytes
        if not 0 <= first <= end <= num_bytes:
            raise WireError(f"bytes {first} to {end} are offered of device memory that has {num_bytes}")
        if first % ALIGNED_BYTES:
            raise WireError(f"device memory is offered from byte {first} on, expected a multiple of {ALIGNED_BYTES}")

    def close(self, base: int) -> None:
        """Unmaps what was opened at this address. All work that uses it must have completed."""
        self._call("cuIpcCloseMemHandle", base)

    def _tensor(self, address: int, num_bytes: int) -> Tensor:
        """Bytes at an address, as a tensor of the GPU that holds them. That may be another GPU, which ours reaches as a
        peer; as a tensor of our GPU, torch would copy them."""
        ordinal = c_int()
        self._call("cuPointerGetAttribute", byref(ordinal), _DEVICE_ORDINAL, address)
        shape = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        array = SimpleNamespace(__cuda_array_interface__=shape)
        try:
            memory = torch.as_tensor(array, device=torch.device(self._device.type, ordinal.value))
        except RuntimeError as error:
            raise WireError(f"torch cannot use device memory of another process: {error}") from error
        if memory.data_ptr() != address:
            raise WireError("torch copies device memory of another process instead of using it")
        return memory

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = c_char_p()
            self._library.cuGetErrorName(status, byref(text))
            raise WireError(f"{name}: {(text.value or b'unknown error').decode()} ({status})")


@dataclass(frozen=True, eq=False)
class OpenedMemory:
    """Bytes of another process, mapped here until close()."""

    memory: Tensor
    driver: CudaIpc
    base: int

    def close(self) -> None:
        """Unmaps the memory. All work that uses it must have completed, and `memory` must not be used any more."""
        self.driver.close(self.base)


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
        self._tables: WeakKeyDictionary[Tiles, Tensor] = WeakKeyDictionary()

    def warm_up(self, layout: LayerLayout) -> None:
        """Compiles the kernel for whole pages and for single tokens, to write and to read. Blocks."""
        word = word_bytes(layout)
        page_LW = torch.zeros(1, layout.page_bytes // word, dtype=WORDS[word], device=self._device)
        torch.cuda.synchronize(self._device)  # it was zeroed on another stream
        for num_words in (page_LW.numel(), layout.token_bytes // word):
            tile = Tiles(num_words, np.zeros(1, np.int64), np.zeros(1, np.int64))
            for target_LW in (torch.empty_like(page_LW), None):
                self.begin(page_LW, target_LW, tile).wait()

    def begin(self, source_LW: Tensor, target_LW: Tensor | None, tiles: Tiles) -> "CudaMoving":
        """See Copies."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            table_2U, shape = self._table(tiles), (source_LW.shape[0], self._kernel.NUM_SUMS)
            sums_LS = torch.zeros(shape, dtype=torch.int64, device=self._device)
            self._kernel.launch(source_LW, target_LW, table_2U, tiles.num_words, sums_LS)
            read_LS = torch.empty(shape, dtype=torch.int64, pin_memory=True)
            read_LS.copy_(sums_LS, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return CudaMoving(event, read_LS, (table_2U, sums_LS))

    def _table(self, tiles: Tiles) -> Tensor:
        """The tiles' numbers on the device, kept for the next layers."""
        if (table_2U := self._tables.get(tiles)) is None:
            pinned_2U = torch.from_numpy(np.stack([tiles.sources_U, tiles.targets_U])).pin_memory()
            table_2U = self._tables[tiles] = pinned_2U.to(self._device, non_blocking=True)
        return table_2U


@dataclass(frozen=True, eq=False)
class CudaMoving:
    """See device_pools.Moving. `used` keeps tensors alive while the device needs them."""

    event: torch.cuda.Event
    read_LS: Tensor
    used: Sequence[Tensor]

    @property
    def done(self) -> bool:
        """Whether the device has reached the event after the copy."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Blocks until `done`."""
        self.event.synchronize()

    @cached_property
    def totals(self) -> Sequence[int]:
        """The sum of all programs' shares, by layer."""
        assert self.done, "the device has not computed the sums yet"
        totals: list[int] = self.read_LS.sum(1).tolist()  # int64 wraps on overflow
        return [total & WRAP for total in totals]
