"""The backends that two processes may use, by the name that --transfer-backend takes.

What it does not know: any backend's workings. The in-process one is for tests and is not named here.
"""

from typing import Any, Final, get_args

import zmq

from protocol.errors import ConfigError
from runtime.curve import OPEN, Security
from runtime.settings import TransferBackend
from transfer.backend_shm import PoolMaps, PoolOwner, SharedPages
from transfer.backend_zmq import zmq_receiver, zmq_sender
from transfer.interface import KvReceiver, KvSender, PageMemory
from transfer.writers import Writers

BACKENDS: Final = get_args(TransferBackend)  # auto: shm for each pair of workers that can, else zmq


def open_sender(
    backend: str, memory: PageMemory, instance: int, context: zmq.Context[Any], security: Security = OPEN
) -> KvSender:
    """The sender of a prefill worker; the caller ends `context` after close(). ConfigError for an unknown backend."""
    _check(backend)
    pools = None if backend == "zmq" else PoolMaps(required=backend == "shm")
    return zmq_sender(memory, instance, context, pools=pools, security=security)


def open_receiver(
    backend: str, memory: SharedPages, host: str, context: zmq.Context[Any], security: Security = OPEN
) -> KvReceiver:
    """The receiver of a decode worker that peers reach at `host`. ConfigError for a wrong backend or host."""
    _check(backend)
    writers = None if backend == "zmq" else Writers(PoolOwner(memory), required=backend == "shm")
    return zmq_receiver(memory, host, context, writers, security)


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise ConfigError(f"transfer_backend: got {backend!r}, expected one of {', '.join(BACKENDS)}")
