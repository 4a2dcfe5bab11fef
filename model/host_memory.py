"""How much memory is available: the least of the kernel's estimate and every cgroup limit of this process.

It reads both cgroup versions, and CUDA devices. kv_sizing.py decides with these numbers.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from runtime.cgroups import ROOT, groups_of, read_if_there

_PROC: Final = Path("/proc")
_LIBC: Final = ctypes.CDLL(None)
# files of a group: limit, usage, and the name of its page cache in memory.stat
_NAMES_V2: Final = "memory.max", "memory.current", "inactive_file"
_NAMES_V1: Final = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def available_bytes(device: torch.device, *, proc: Path = _PROC, cgroups: Path = ROOT) -> int:
    """Bytes that can be allocated on `device` now without swapping or killing other processes."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free)
    return min(_mem_available(proc), *_cgroup_rooms(proc, cgroups))


def return_free_memory() -> None:
    """Gives what the C library keeps of freed memory back to the host, where the library can do so."""
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def device_share(device: torch.device, workers: int) -> int:
    """Bytes that one of `workers` on a CUDA device may still allocate. Never more than is free.

    That is an equal part of the device's memory less what this process holds, whichever worker starts first.
    """
    free, total = torch.cuda.mem_get_info(device)
    return min(int(free), int(total) // workers - torch.cuda.memory_reserved(device))


def _mem_available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no MemAvailable line")


def _cgroup_rooms(proc: Path, cgroups: Path) -> Iterator[int]:
    """Bytes left under each limit of this process's cgroup and its parents; no limit if cgroups cannot be read."""
    yield 1 << 62
    for group, is_v2 in groups_of("memory", proc / "self" / "cgroup", cgroups):
        room = _room(group, *(_NAMES_V2 if is_v2 else _NAMES_V1))
        if room is not None:
            yield room


def _room(group: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    """Limit less usage. Page cache that the kernel would drop first does not count as used."""
    try:
        limit = (group / limit_name).read_text().strip()
        usage = int((group / usage_name).read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():  # "max"
        return None
    return max(0, int(limit) - max(0, usage - _stat(group / "memory.stat", cache_name)))


def _stat(path: Path, name: str) -> int:
    lines = read_if_there(path).splitlines()
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def give_back() -> None:
    """Gives memory that was freed back to the system, where the C library can. Else it keeps what copies took."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
