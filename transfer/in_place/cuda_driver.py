"""Shares device memory between processes through the CUDA driver: a handle here is an address there.

The driver is called through ctypes. torch's own functions are private and made for queues between processes that torch
started: they count references in named files, which outlive a killed process. The driver's functions are public and
unchanged since CUDA 4.1. A handle stands for a whole allocation, so the memory's offset in it is sent along. torch's
expandable segments have no such handle.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from protocol.errors import WireError
from transfer.offers import DeviceHandle

HANDLE_BYTES: Final = 64
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

    def close(self, base: int) -> None:
        """Unmaps what was opened at this address. All work that uses it must have completed."""
        self._call("cuIpcCloseMemHandle", base)

    def _tensor(self, address: int, num_bytes: int) -> Tensor:
        """Bytes at an address, as a tensor of the GPU that holds them. That may be another GPU, which ours reaches as a
        peer; as a tensor of our GPU, torch would copy them."""
        ordinal = c_int()
        self._call("cuPointerGetAttribute", byref(ordinal), _DEVICE_ORDINAL, address)
        try:
            memory = torch.as_tensor(
                _Array.at(address, num_bytes), device=torch.device(self._device.type, ordinal.value)
            )
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


@dataclass(frozen=True)
class _Array:
    """The argument of torch.as_tensor for memory on a device."""

    __cuda_array_interface__: dict[str, Any]

    @staticmethod
    def at(address: int, num_bytes: int) -> "_Array":
        return _Array({"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3})
