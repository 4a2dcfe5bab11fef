"""The backends that two processes may use, by the name that --transfer-backend takes.

What it does not know: any backend's workings. The in-process one is for tests and is not named here.
"""

from typing import Any, Final

import zmq

from protocol.errors import ConfigError
from transfer.backend_zmq import zmq_receiver, zmq_sender
from transfer.interface import KvReceiver, KvSender, PageMemory

BACKENDS: Final = ("zmq",)


def open_sender(backend: str, memory: PageMemory, instance: int, context: zmq.Context[Any]) -> KvSender:
    """The sender of a prefill worker; the caller ends `context` after close(). ConfigError for an unknown backend."""
    _check(backend)
    return zmq_sender(memory, instance, context)


def open_receiver(backend: str, memory: PageMemory, host: str, context: zmq.Context[Any]) -> KvReceiver:
    """The receiver of a decode worker that peers reach at `host`. ConfigError for a wrong backend or host."""
    _check(backend)
    return zmq_receiver(memory, host, context)


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"transfer_backend: got {backend!r}, expected one of {', '.join(BACKENDS)}")
