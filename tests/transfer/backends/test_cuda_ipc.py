"""How the driver is called, with a driver that is not there."""

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.errors import WireError
from transfer.backends.cuda_ipc import HANDLE_BYTES, CudaIpc
from transfer.offers import DeviceHandle

BASE, MAPPED = 0x1000, 0x90000
KEY = bytes(range(HANDLE_BYTES))


class Driver:
    """Notes calls; `failing` is the call that fails."""

    def __init__(self, base: int = BASE, failing: str = "", size: int = 1 << 62) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._base = base
        self._size = size
        self._failing = failing
        for name in ("cuGetErrorName", "cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"):
            setattr(self, name, self._function(name))
        for name in ("cuIpcCloseMemHandle", "cuPointerGetAttribute"):
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            if name == self._failing:
                return 201
            getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return 0

        return called

    def _cuMemGetAddressRange_v2(self, base: Any, size: Any, address: int) -> None:
        base._obj.value, size._obj.value = address if address == MAPPED else self._base, self._size

    def _cuIpcGetMemHandle(self, handle: Any, base: Any) -> None:
        assert base.value == self._base
        handle._obj.reserved[:] = KEY

    def _cuIpcOpenMemHandle_v2(self, base: Any, handle: Any, flags: int) -> None:
        assert bytes(handle.reserved) == KEY and flags == 1 and ctypes.sizeof(handle) == HANDLE_BYTES
        base._obj.value = MAPPED

    def _cuGetErrorName(self, status: int, text: Any) -> None:
        text._obj.value = b"CUDA_ERROR_INVALID_CONTEXT"

    def _cuPointerGetAttribute(self, value: Any, attribute: int, address: int) -> None:
        assert (attribute, address) == (9, MAPPED + 40)
        value._obj.value = 3

    @property
    def names(self) -> list[object]:
        return [call[0] for call in self.calls]


class Here(CudaIpc):
    """Where torch has no device, memory is only an address."""

    def _tensor(self, address: int, num_bytes: int) -> Tensor:
        if num_bytes == 13:
            raise WireError("torch cannot")
        return torch.tensor([address, num_bytes])


def test_a_handle_is_of_the_allocation_and_says_where_in_it() -> None:
    memory = torch.zeros(3, 5, dtype=torch.int32)
    driver = Driver(base=memory.data_ptr() - 40)
    assert Here(torch.device("cpu"), driver).export(memory) == DeviceHandle(KEY.hex(), 40, 60)


def test_what_was_opened_is_closed_once() -> None:
    driver = Driver()
    opened = Here(torch.device("cpu"), driver).open(DeviceHandle(KEY.hex(), 40, 60))
    assert opened.memory.tolist() == [MAPPED + 40, 60]
    opened.close()
    assert driver.calls[-1] == ("cuIpcCloseMemHandle", MAPPED) and driver.names.count("cuIpcCloseMemHandle") == 1


def test_memory_of_another_gpu_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tensor of our own GPU, torch would copy it."""
    asked: list[torch.device] = []

    class Memory:
        def data_ptr(self) -> int:
            return MAPPED + 40

    def as_tensor(_: Any, device: torch.device) -> Memory:
        asked.append(device)
        return Memory()

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    opened = CudaIpc(torch.device("cuda", 0), Driver()).open(DeviceHandle(KEY.hex(), 40, 60))
    assert opened.memory.data_ptr() == MAPPED + 40 and asked == [torch.device("cuda", 3)]


@pytest.mark.parametrize("offset, num_bytes", [(0, 101), (60, 41), (101, 0), (-1, 60), (1 << 63, 1)])
def test_bytes_outside_the_allocation_are_refused(offset: int, num_bytes: int) -> None:
    """Prefill would write where decode's process has something else, or nothing."""
    driver = Driver(size=100)
    with pytest.raises(WireError, match="of device memory that has 100"):
        Here(torch.device("cpu"), driver).open(DeviceHandle(KEY.hex(), offset, num_bytes))
    assert driver.names[-1] == "cuIpcCloseMemHandle"


@pytest.mark.parametrize("offset", [1, 4, 39])
def test_memory_that_begins_amid_a_word_is_refused(offset: int) -> None:
    driver = Driver(size=100)
    with pytest.raises(WireError, match=f"from byte {offset} on, expected a multiple of 8"):
        Here(torch.device("cpu"), driver).open(DeviceHandle(KEY.hex(), offset, 16))
    assert driver.names[-1] == "cuIpcCloseMemHandle"


def test_the_last_byte_of_an_allocation_is_inside() -> None:
    opened = Here(torch.device("cpu"), Driver(size=100)).open(DeviceHandle(KEY.hex(), 40, 60))
    assert opened.memory.tolist() == [MAPPED + 40, 60]


def test_memory_that_torch_cannot_use_is_closed_again() -> None:
    driver = Driver()
    with pytest.raises(WireError, match="torch cannot"):
        Here(torch.device("cpu"), driver).open(DeviceHandle(KEY.hex(), 0, 13))
    assert driver.names[-1] == "cuIpcCloseMemHandle"


def test_an_allocation_whose_size_is_unknown_is_closed_again() -> None:
    driver = Driver(failing="cuMemGetAddressRange_v2")
    with pytest.raises(WireError, match="cuMemGetAddressRange_v2: CUDA_ERROR_INVALID_CONTEXT"):
        Here(torch.device("cpu"), driver).open(DeviceHandle(KEY.hex(), 0, 1))
    assert driver.names[-1] == "cuIpcCloseMemHandle"


@pytest.mark.parametrize("failing", ["cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"])
def test_a_refusal_of_the_driver_is_named(failing: str) -> None:
    memory = torch.zeros(8)
    ipc = Here(torch.device("cpu"), Driver(base=memory.data_ptr(), failing=failing))
    with pytest.raises(WireError, match=rf"{failing}: CUDA_ERROR_INVALID_CONTEXT \(201\)"):
        ipc.open(DeviceHandle(KEY.hex(), 0, 1)) if "Open" in failing else ipc.export(memory)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_the_reason_is_given() -> None:
    with pytest.raises(WireError, match="there is no CUDA driver"):
        CudaIpc(torch.device("cuda"))
