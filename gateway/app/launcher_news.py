"""What the launcher tells this gateway on its standard input: lines of runtime/supervision.py."""

import asyncio
import os
import stat
from collections.abc import Callable

from runtime.log import get_log
from runtime.supervision import MAX_LINE_BYTES, UnitNews

READ_BYTES = 64 * 1024
log = get_log("gateway")


class LauncherNews:
    """Calls `heard` with each piece of news. Begin on the running loop with `start`."""

    def __init__(self, fd: int, heard: Callable[[UnitNews], None]) -> None:
        self._fd, self._heard = fd, heard
        self._rest = b""

    def start(self) -> None:
        """Listens until the launcher closes its end. Does nothing if the descriptor is no pipe."""
        if stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            os.set_blocking(self._fd, False)
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            got = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        if not got:
            asyncio.get_running_loop().remove_reader(self._fd)
            return
        *lines, self._rest = (self._rest + got).split(b"\n")
        self._rest = self._rest[:MAX_LINE_BYTES]
        for line in lines:
            if (news := UnitNews.from_line(line)) is not None:
                self._heard(news)
            else:
                log.warning("the launcher says what makes no sense", line=line[:80].decode("utf-8", "replace"))
