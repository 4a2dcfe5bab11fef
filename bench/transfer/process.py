"""`python -m bench.transfer.process prefill|decode CORE`: one end of every side, on its own core, set up like a worker.

    {"do": "blocks", "name": ...}               -> {}
    {"do": "open", "side": ...}                 -> {"address": ...}
    {"do": "meet", "side": ..., "address": ...} -> {}
    {"do": "move", "side": ..., "check": ...}   -> {"start": seconds} or {"end": seconds}, or both
    {"do": "digest"}                            -> {"digest": ...} of this end's KV
    {"do": "close"}                             -> {}, closes every side; new blocks may follow

Commands and answers are lines of JSON.
"""

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from bench.child import answer_all
from bench.transfer.blocks import BLOCKS, Blocks, HostPages
from bench.transfer.ends import DecodeEnd, End, PrefillEnd
from bench.transfer.limits import CopyEnd, SocketReceiveEnd, SocketSendEnd
from protocol import frame
from runtime.settings import TransferBackend
from transfer.backends.nixl.agent import is_installed

MakeEnd = Callable[[HostPages, Blocks], End]


def _backend(name: TransferBackend) -> tuple[MakeEnd, MakeEnd]:
    return partial(PrefillEnd, name), partial(DecodeEnd, name)


# Both ends of everything that is measured: prefill's, decode's. Names of limits end in "limit".
SIDES: Final[dict[str, tuple[MakeEnd, MakeEnd]]] = {
    "shm": _backend("shm"),
    "shm limit": (CopyEnd, End),
    "zmq_tcp": _backend("zmq"),
    "zmq_tcp limit": (SocketSendEnd, SocketReceiveEnd),
    **({"nixl": _backend("nixl")} if is_installed() else {}),
    "zmq_curve": (partial(PrefillEnd, "zmq", encrypted=True), partial(DecodeEnd, "zmq", encrypted=True)),
}
_checksum = frame.checksum


class EndProcess:
    """Carries out the commands."""

    def __init__(self, role: str) -> None:
        self._index = ("prefill", "decode").index(role)
        self._ends: dict[str, End] = {}
        self._blocks: Blocks | None = None
        self._memory: HostPages | None = None

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out one command and returns its answer."""
        match command:
            case {"do": "blocks", "name": name}:
                self._blocks = BLOCKS[name]
                layout = self._blocks.landed if self._index else self._blocks.sent
                self._memory = HostPages(layout, 1 + layout.num_pages(self._blocks.num_tokens))
                self._memory.fill(self._index)
            case {"do": "open", "side": side}:
                assert self._memory is not None and self._blocks is not None, "blocks come first"
                self._ends[side] = SIDES[side][self._index](self._memory, self._blocks)
                return {"address": self._ends[side].address}
            case {"do": "meet", "side": side, "address": address}:
                self._ends[side].meet(address)
            case {"do": "move", "side": side, "check": check}:
                frame.checksum = _checksum if check else self._no_checksum
                return self._ends[side].move(check)
            case {"do": "digest"}:
                assert self._memory is not None and self._blocks is not None, "blocks come first"
                pages = self._blocks.pages(self._memory.layout, seed=1 + self._index)
                return {"digest": self._memory.digest(pages, self._blocks.num_tokens)}
            case {"do": "close"}:
                for end in self._ends.values():
                    end.close()
                self._ends.clear()
            case _:
                raise ValueError(f"command: got {command}")
        return {}

    def _no_checksum(self, header: frame.FrameHeader, parts: Iterable[bytes | memoryview]) -> int:
        if self._index == 0:
            for _ in parts:  # reading a part writes or gathers it
                pass
        return 0


def main() -> None:
    """Reads commands until stdin ends."""
    role, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    sys.setswitchinterval(1e-4)  # as a worker does
    answer_all(EndProcess(role).do)


if __name__ == "__main__":
    main()
