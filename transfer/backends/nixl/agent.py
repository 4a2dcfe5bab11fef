"""One process's NIXL agent: memory that peers may read, and reads of theirs. The only file that knows the package.

Its progress thread waits for events, so that it costs next to nothing while nothing moves, and needs no interpreter.
NIXL runs native code on what a peer exports: that must come from one who is trusted. What it does not know: frames.
"""

import ctypes
import importlib.util
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from protocol.errors import ConfigError, WireError
from transfer.backends.nixl.notice import Region

_PACKAGES: Final = ("nixl_cu12", "nixl_cu13", "nixl_rocm")  # host memory is moved alike by each
_PROGRESS_US: Final = 20_000  # the thread looks by itself as often, in case an event was missed


def is_installed() -> bool:
    """Whether there is a package to try."""
    return any(importlib.util.find_spec(name) for name in _PACKAGES)


def address_of(view: memoryview) -> int:
    """Where writable bytes lie."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Read:
    """Bytes under way from a peer into our memory, until is_over."""

    def __init__(self, nixl: Any, agent: Any, errors: tuple[type[Exception], ...], handle: int) -> None:
        self._nixl = nixl
        self._agent = agent
        self._errors = errors
        self._handle = handle
        self._is_over = False
        self.failure = ""  # why, once it is over and nothing can be said of the bytes

    @property
    def is_over(self) -> bool:
        """Whether no byte comes any more."""
        if not self._is_over:
            self._look(lambda: self._agent.getXferStatus(self._handle))
        return self._is_over

    def post(self) -> None:
        """Begins."""
        self._look(lambda: self._agent.postXferReq(self._handle))

    def _look(self, call: Callable[[], Any]) -> None:
        try:
            self._is_over = call() == self._nixl.NIXL_SUCCESS
        except self._errors as error:
            self._is_over, self.failure = True, str(error)
        if self._is_over:
            self.close()

    def close(self) -> None:
        """Forgets it."""
        try:
            self._agent.releaseXferReq(self._handle)
        except self._errors as error:
            self.failure = self.failure or str(error)


class Agent:
    """Belongs to one thread."""

    def __init__(self, memory: Sequence[Region] = ()) -> None:
        """Peers may read `memory`. ConfigError where the package is missing or cannot be used on this machine."""
        self._nixl = nixl = _package()
        self._errors = tuple(
            each for each in vars(nixl).values() if isinstance(each, type) and issubclass(each, Exception)
        )
        config = nixl.nixlAgentConfig()
        config.useProgThread, config.useListenThread, config.pthrDelay = True, False, _PROGRESS_US
        try:
            self._agent: Any = nixl.nixlAgent(f"baton-{secrets.token_hex(8)}", config)
            self._agent.createBackend("UCX", {})
            if memory:
                self._agent.registerMem(self._described(memory))
            self.export: bytes = self._agent.getLocalMD()
        except self._errors as error:
            raise ConfigError(f"transfer_backend: nixl cannot be used here ({error})") from error

    def register(self, region: Region) -> None:
        """Reads may write there."""
        self._agent.registerMem(self._described([region]))

    def unregister(self, region: Region) -> None:
        """No read writes there any more; none is under way."""
        self._agent.deregisterMem(self._described([region]))

    def meet(self, export: bytes) -> str:
        """The name of the peer that exports this; WireError if it is no export."""
        try:
            name: bytes = self._agent.loadRemoteMD(export)
        except self._errors as error:
            raise WireError(f"what prefill exports for NIXL cannot be read: {error}") from error
        return name.decode(errors="replace")

    def forget(self, peer: str) -> None:
        """Disconnects. Idempotent."""
        try:
            self._agent.invalidateRemoteMD(peer)
        except self._errors:
            return  # it was not known

    def read(self, peer: str, into: Sequence[Region], source: Sequence[Region], note: bytes) -> Read:
        """Begins to read `source` of a peer, piece by piece; when all is there, the peer gets `note`. WireError if the
        peer does not export that, or is gone."""
        lists = [self._nixl.nixlXferDList(self._nixl.DRAM_SEG, _rows(regions)) for regions in (into, source)]
        try:
            handle = self._agent.createXferReq(self._nixl.NIXL_READ, *lists, peer, note)
        except self._errors as error:
            raise WireError(f"cannot be read: {error}") from error
        read = Read(self._nixl, self._agent, self._errors, handle)
        read.post()
        return read

    def notify(self, peer: str, note: bytes) -> None:
        """The peer gets `note`, if it is there."""
        try:
            self._agent.genNotif(peer, note)
        except self._errors:
            return  # it is gone, and waits for nothing

    def notes(self) -> list[bytes]:
        """What peers have sent since the last call."""
        return [note for notes in self._agent.getNotifs({}).values() for note in notes]

    def close(self) -> None:
        """Ends the thread and every connection. Nothing else may be called any more. Idempotent."""
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
