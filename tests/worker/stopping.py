"""A StopSignal that a test sets."""

import os
import signal


class Stop:
    """Stands in for StopSignal: without handlers, so that any thread may have one."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        self.received: signal.Signals | None = None
        self.count = 0

    def set(self) -> None:
        """A signal has come. Any thread may call it."""
        self.received = signal.SIGTERM
        self.count += 1
        os.write(self._write_fd, b"x")

    def is_set(self) -> bool:
        return self.received is not None

    def clear_wakeup(self) -> None:
        return

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)
