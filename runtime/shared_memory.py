"""Memory that another process on this host may map, and seats in it: the holder of a seat may write there.

The memory is a file without a name; the kernel frees it with the last process that has it open. A seat is a lock on one
byte of the file; the kernel frees it with its holder.

The kernel ends a process thread by thread. It first marks each thread as exiting. A thread that is a zombie or gone has
closed all that it was the last to hold. So a free seat does not prove that a device is free until `is_ending` is False.
"""

import fcntl
import mmap
import os
import struct
import weakref
from pathlib import Path
from typing import Final

NAME: Final = "baton-kv"  # in /proc/PID/maps and /proc/PID/fd
_FLOCK: Final = "hhqqi0q"  # type, whence, start, length, pid: struct flock of Linux with 64-bit offsets
_PROC: Final = Path("/proc")
_EXITING: Final = 0x4  # PF_EXITING, of the flags in /proc/PID/task/TID/stat
_OVER: Final = "ZX"


class SharedMemory:
    """Zeroed bytes, kept with `fd` until this object is garbage-collected."""

    def __init__(self, num_bytes: int) -> None:
        self.fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, num_bytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.mapping = mmap.mmap(self.fd, num_bytes)
        self._num_seats = 0

    def new_seat(self) -> int:
        """A seat that was never offered before, to whoever may take it."""
        self._num_seats += 1
        return self._num_seats


def open_shared(pid: int, fd: int, num_bytes: int | None = None) -> int:
    """Opens the shared memory that process `pid` has open as descriptor `fd`, and returns a new descriptor. With
    `num_bytes`, also checks its size. OSError names what is wrong."""
    path = f"/proc/{pid}/fd/{fd}"
    if not os.readlink(path).startswith(f"/memfd:{NAME}"):
        raise OSError(f"descriptor {fd} of process {pid} is not KV memory of Baton")
    ours = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    size, seals = os.fstat(ours).st_size, fcntl.fcntl(ours, fcntl.F_GET_SEALS)
    if num_bytes not in (None, size) or not seals & fcntl.F_SEAL_SHRINK:
        os.close(ours)
        raise OSError(f"it has {size} bytes, expected {num_bytes} that cannot shrink")
    return ours


def take_seat(fd: int, seat: int) -> None:
    """Holds `seat` until `fd` and its mappings are closed or this process ends. OSError if another descriptor holds
    it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, seat, 1, 0))


def is_taken(fd: int, seat: int) -> bool:
    """Whether another descriptor than `fd` holds `seat`."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, seat, 1, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def host_identity() -> str:
    """Equal for processes that see each other in /proc."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def is_ending(pid: int, proc: Path = _PROC) -> bool:
    """Whether a thread of the process is exiting. False if the process runs normally or has ended."""
    tasks = proc / str(pid) / "task"
    try:
        threads = os.listdir(tasks)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(_is_exiting(tasks / thread / "stat") for thread in threads)


def _is_exiting(stat: Path) -> bool:
    try:
        line = stat.read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, _ppid, _group, _session, _tty, _tty_group, flags, *_ = line.rpartition(")")[2].split()
    return state not in _OVER and bool(int(flags) & _EXITING)
