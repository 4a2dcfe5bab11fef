"""A process's NIXL agent: memory that peers may read, and reads of theirs. The only file that imports the package.

Its progress thread waits for events, so it costs almost nothing while nothing moves and does not need the interpreter.
NIXL runs native code on a peer's export, so the peer must be trusted.
"""

import ctypes
import importlib.util
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocol.errors import ConfigError, WireError
from runtime.log import get_log

_PACKAGES: Final = ("nixl_cu12", "nixl_cu13", "nixl_rocm")  # all move host memory alike
_TRIES: Final = 3  # to make an agent
_PROGRESS_US: Final = 20_000  # how often the thread looks without an event, in case one was missed
log = get_log("transfer")


def is_installed() -> bool:
    """Whether one of the packages is installed."""
    return any(importlib.util.find_spec(name) for name in _PACKAGES)


def address_of(view: memoryview) -> int:
    """The address of writable bytes."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@dataclass(frozen=True)
class Region:
    """Bytes of memory of some process: [address, address + num_bytes)."""

    address: int
    num_bytes: int

    def contains(self, other: "Region") -> bool:
        """Whether `other` lies inside."""
        return self.address <= other.address and other.address + other.num_bytes <= self.address + self.num_bytes


class Read:
    """A read from a peer into our memory. It begins at once."""

    def __init__(self, nixl: Any, agent: Any, errors: tuple[type[Exception], ...], handle: int) -> None:
        self._nixl = nixl
        self._agent = agent
        self._errors = errors
        self._handle = handle
        self._is_over = False
        self.failure = ""  # why it failed; the bytes are then undefined
        self._look(lambda: agent.postXferReq(handle))

    @property
    def is_over(self) -> bool:
        """Whether no more bytes arrive."""
        if not self._is_over:
            self._look(lambda: self._agent.getXferStatus(self._handle))
        return self._is_over

    def _look(self, call: Callable[[], Any]) -> None:
        try:
            self._is_over = call() == self._nixl.NIXL_SUCCESS
        except self._errors as error:
            self._is_over, self.failure = True, str(error)
        if self._is_over:
            self.close()

    def close(self) -> None:
        """Releases the request."""
        try:
            self._agent.releaseXferReq(self._handle)
        except self._errors as error:
            self.failure = self.failure or str(error)


class Agent:
    """The agent of one thread."""

    def __init__(self, memory: Sequence[Region] = ()) -> None:
        """Peers may read `memory`. ConfigError if the package is missing or does not work on this machine."""
        self._nixl = nixl = _package()
        self._errors = tuple(
            kind for kind in vars(nixl).values() if isinstance(kind, type) and issubclass(kind, Exception)
        )

        try:
            self._agent = self._made(_TRIES)
            if memory:
                self._agent.registerMem(self._described(memory))
            self.export: bytes = self._agent.getLocalMD()
        except self._errors as error:
            raise ConfigError(f"transfer_backend: nixl cannot be used here ({error})") from error

    def _made(self, num_tries: int) -> Any:
        """An agent with UCX. A new one is tried again if UCX fails: it connects to a port of its own, and now and then
        that is refused."""
        config = self._nixl.nixlAgentConfig()
        config.useProgThread, config.useListenThread, config.pthrDelay = True, False, _PROGRESS_US

        agent = self._nixl.nixlAgent(f"baton-{secrets.token_hex(8)}", config)
        try:
            agent.createBackend("UCX", {})
        except self._errors as error:
            if num_tries == 1:
                raise
            log.warning("NIXL starts again", why=str(error))
            return self._made(num_tries - 1)
        return agent

    def register(self, region: Region) -> None:
        """Lets reads write into `region`."""
        self._agent.registerMem(self._described([region]))

    def unregister(self, region: Region) -> None:
        """Undoes register(). No read may be running there."""
        self._agent.deregisterMem(self._described([region]))

    def meet(self, export: bytes) -> str:
        """The name of the peer with this export. WireError if it is invalid."""
        try:
            name: bytes = self._agent.loadRemoteMD(export)
        except self._errors as error:
            raise WireError(f"what prefill exports for NIXL cannot be read: {error}") from error
        return name.decode(errors="replace")

    def forget(self, peer: str) -> None:
        """Disconnects the peer. Idempotent."""
        try:
            self._agent.invalidateRemoteMD(peer)
        except self._errors:
            return  # it was unknown

    def read(self, peer: str, into: Sequence[Region], source: Sequence[Region], note: bytes) -> Read:
        """Begins to read `source` of a peer, piece by piece. The peer gets `note` when all has arrived. WireError if
        the peer does not export `source` or is gone."""
        lists = [self._nixl.nixlXferDList(self._nixl.DRAM_SEG, _rows(regions)) for regions in (into, source)]
        try:
            handle = self._agent.createXferReq(self._nixl.NIXL_READ, *lists, peer, note)
        except self._errors as error:
            raise WireError(f"cannot be read: {error}") from error
        return Read(self._nixl, self._agent, self._errors, handle)

    def notify(self, peer: str, note: bytes) -> None:
        """Sends `note` to the peer, if it still exists."""
        try:
            self._agent.genNotif(peer, note)
        except self._errors:
            return  # it is gone and waits for nothing

    def notes(self) -> list[bytes]:
        """Notes from peers since the last call."""
        return [note for notes in self._agent.getNotifs({}).values() for note in notes]

    def close(self) -> None:
        """Ends the thread and all connections. Call nothing afterwards. Idempotent."""
        self._agent = None

    def _described(self, regions: Sequence[Region]) -> Any:
        return self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(*row, "") for row in _rows(regions)])


def _rows(regions: Sequence[Region]) -> list[tuple[int, int, int]]:
    return [(region.address, region.num_bytes, 0) for region in regions]


def _package() -> Any:
    for name in _PACKAGES:
        try:
            return importlib.import_module(f"{name}._bindings")
        except ModuleNotFoundError as error:
            if error.name != name:
                raise ConfigError(f"transfer_backend: {name} cannot be loaded ({error})") from error
        except ImportError as error:
            raise ConfigError(f"transfer_backend: {name} cannot be loaded ({error})") from error
    raise ConfigError(
        "transfer_backend: nixl needs a package that is not installed;"
        " in Baton's folder: .venv/bin/pip install -c constraints.txt -e '.[nixl]'"
    )
