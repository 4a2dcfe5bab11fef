"""How a process starts and ends: dying with its launcher, stop signals, thread counts, the status pipe.

    launcher --fork, exec--> process        environment: thread_environment(), BATON_LAUNCHER_PID
    launcher <--JSON lines-- status pipe    {"event": "loading"|"ready"|"alive"|"leaving"|"failed", ...}

The `baton` command is the launcher.
"""

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self

from runtime.processor import product_environment

LAUNCHER_PID = "BATON_LAUNCHER_PID"
EXIT_CONFIG = 2  # cannot start: configuration, model or address
EXIT_REFUSED = 3  # the gateway refuses this worker
EXIT_BROKEN = 4  # it served, then every launch failed
MAX_STATUS_BYTES = 4096  # the most that a pipe writes in one piece
ALIVE_S = 1.0  # between two signs of life
LATE_S = 1.0  # between two turns of a main loop, which turns several times a second: the process was paused, or starved
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int | None = None) -> bool:
    """Asks the kernel to kill this process when its parent ends in any way. Call it before slow imports.

    `parent_pid` defaults to BATON_LAUNCHER_PID in the environment. Without either, as for a process started by hand,
    it does nothing and returns False. If the parent has ended already, this process ends. To the kernel the parent is
    the *thread* that forked, so that thread must live as long as this process may: a main thread, or one of a pool.
    """
    if parent_pid is None:
        written = os.environ.get(LAUNCHER_PID, "")
        if not written.isdigit():
            return False
        parent_pid = int(written)

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent_pid:  # the parent ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)
    return True


@contextmanager
def quick_imports() -> Iterator[None]:
    """For the imports of a process that starts: the garbage collector looks at nothing that they make, now or later.

    What is imported stays until the process ends. To look at it again and again is a tenth of a worker's start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def thread_environment(num_threads: int) -> dict[str, str]:
    """Environment for a process that may compute with `num_threads` threads. Set it before torch is imported.

    Idle threads sleep instead of spinning, because several workers share the host's cores. The C library keeps freed
    memory in one arena: if each forward returned it to the kernel, the next would fault it in again, and a decode step
    would take three times as long. It uses huge pages, because a step reads all weights, and each 4 KiB page would cost
    a look-up. The user's own GLIBC_TUNABLES come last and win.
    """
    count = str(num_threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        "RAYON_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:{os.environ.get('GLIBC_TUNABLES', '')}".rstrip(":"),
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # glibc's largest value
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_TOP_PAD_": str(16 << 20),
    } | product_environment()


def end_process(status: int) -> NoReturn:
    """Ends at once, after `main` has cleaned up. torch's teardown takes seconds on a busy host and frees only what the
    kernel frees anyway."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Stop:
    """A wish to stop, as a flag and as a descriptor that becomes readable, for a poller. Any thread may make it."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.count = 0  # how often it was made

    def request(self) -> None:
        """Makes the wish, and wakes the poller."""
        self.count += 1
        os.write(self._write_fd, b"\0")

    def is_set(self) -> bool:
        """Whether it was made."""
        return self.count > 0

    def clear_wakeup(self) -> None:
        """Empties the descriptor. Other signals, such as SIGCHLD, make that of StopSignal readable too."""
        try:
            while os.read(self.fd, 512):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.fd)
        os.close(self._write_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class StopSignal(Stop):
    """SIGINT and SIGTERM as a wish to stop. Main thread only.

    The C-level handler writes to the descriptor. So a poll in the main thread wakes even if the kernel delivers the
    signal to another thread.
    """

    def __init__(self, signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)) -> None:
        super().__init__()
        self.received: signal.Signals | None = None  # the first one
        self._old_wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, self._note) for number in signals}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        self.count += 1

    def close(self) -> None:
        """Restores the former handlers."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}
        signal.set_wakeup_fd(self._old_wakeup)
        super().close()


class StatusPipe:
    """Reports the start to the launcher, one JSON line per event. Does nothing without a descriptor."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._alive_at = 0.0
        self._turned_at: float | None = None
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)  # a paused launcher must not block this process

    def loading(self, what: str, **details: Any) -> None:
        """The process is busy with `what` ("weights"). `done` and `total` in `details` make a progress bar."""
        self.send("loading", what=what, **details)

    def ready(self, **details: Any) -> None:
        """The process serves."""
        self.send("ready", **details)

    def alive(self, now: float) -> None:
        """The main loop turns. Call it several times a second; it writes once a second. `now` is in seconds of one
        clock. After the first sign of life, the launcher takes a long silence for a hang. After a pause it says at once
        how long that was: if the process ends because others have missed it, it is not to blame."""
        late_s = 0.0 if self._turned_at is None else now - self._turned_at
        self._turned_at = now
        if late_s > LATE_S:
            self._alive_at = now + ALIVE_S
            self.send("alive", paused_s=round(late_s, 3), at=now)
        elif now >= self._alive_at:
            self._alive_at = now + ALIVE_S
            self.send("alive")

    def leaving(self, num_requests: int, bound_s: float) -> None:
        """The process was told to end, and finishes what it has: `num_requests`, in at most `bound_s` seconds."""
        self.send("leaving", requests=num_requests, bound_s=bound_s)

    def failed(self, error: str, **details: Any) -> None:
        """The process ends because of `error`, one sentence for a person."""
        self.send("failed", error=error[:500], **details)

    def send(self, event: str, **details: Any) -> None:
        """Writes one event. Drops it if the launcher has ended or the pipe is full."""
        if self._fd is None:
            return
        line = json.dumps({"event": event, **details}, ensure_ascii=False).encode(errors="replace") + b"\n"
        assert len(line) <= MAX_STATUS_BYTES, f"status event {event} of {len(line)} bytes"
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        """Closes the descriptor."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
