"""Registers host memory with the driver, so that a GPU's kernels reach it, and takes that back before it is unmapped.

    registered, piece by piece -> in use -> the device is idle -> each piece unregistered -> unmapped

The driver would keep the pages of unmapped memory that is still registered, and refuse the next memory at their
address. A copy kernel may cross pieces; calls of the driver such as cudaMemcpy may not.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch

from model.paged_kv import PagedKv
from protocol.errors import ConfigError

PIECE_BYTES: Final = 16 << 30  # of one call, which holds the driver's lock while it runs
REGISTER_FLAGS: Final = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


def pin(host: PagedKv, device: torch.device, option: str) -> None:
    """Lets a GPU reach this host memory for as long as `host` exists. On a CPU it does nothing.

    ConfigError if the driver refuses; it names `option`, the one that sizes the memory. Nothing stays registered then.
    """
    if device.type != "cuda":
        return
    start, num_bytes = host.device_bytes.data_ptr(), host.device_bytes.nbytes
    runtime, done = torch.cuda.cudart(), list[int]()
    with torch.cuda.device(device):
        for offset in range(0, num_bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, num_bytes - offset)
            status = runtime.cudaHostRegister(start + offset, size, REGISTER_FLAGS)
            if int(status) != 0:
                _unregister(runtime, done)
                raise ConfigError(_refusal(num_bytes, offset, device, option, status), param=option)
            done.append(start + offset)
    weakref.finalize(host, _unpin, runtime, device, done)


def _unpin(runtime: Any, device: torch.device, pieces: Sequence[int]) -> None:
    """Called before the memory is unmapped.

    A broken device is left alone: nothing may wait for it, and the driver lets go of all when the process ends.
    """
    try:
        torch.cuda.current_stream(device).query()  # raises at once if the device is broken
        torch.cuda.synchronize(device)
    except RuntimeError:
        return
    with torch.cuda.device(device):
        _unregister(runtime, pieces)


def _unregister(runtime: Any, pieces: Sequence[int]) -> None:
    for address in pieces:
        runtime.cudaHostUnregister(address)


def _refusal(num_bytes: int, registered: int, device: torch.device, option: str, status: object) -> str:
    return (
        f"--{option}: {num_bytes / 2**30:.1f} GiB of host memory cannot be pinned for {device}: the driver took"
        f" {registered / 2**30:.1f} GiB and then answered {status}; expected a smaller --{option}, or a higher limit of"
        " locked memory (ulimit -l)"
    )
