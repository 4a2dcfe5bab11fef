"""Opens a backend by its name in --transfer-backend.

`device`: KV memory in which a device computes, if there is one. auto and cuda_ipc write there. auto is, for each pair,
cuda_ipc if possible, else shm, else zmq.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import zmq

from protocol.errors import ConfigError, WireError
from runtime.curve import OPEN, Security
from runtime.log import get_log
from runtime.settings import TransferBackend
from transfer.backends.nixl.backend import nixl_receiver, nixl_sender
from transfer.backends.zmq import ZmqArrivals, ZmqWire
from transfer.in_place.device_pools import AtDevice, DevicePages, DevicePool, DeviceReader
from transfer.in_place.pools import IN_PLACE, ON_DEVICE, MappedPool, Pools, Way
from transfer.in_place.writers import PoolOwner, SeatFile, Writers
from transfer.interfaces import SharedPages
from transfer.landing.frame_receiver import FrameReceiver
from transfer.sending.frame_sender import FrameSender

log = get_log("transfer")
Tried = TypeVar("Tried")


def open_sender(
    backend: TransferBackend,
    memory: SharedPages,
    instance: int,
    context: zmq.Context[Any],
    security: Security = OPEN,
    device: DevicePages | None = None,
) -> FrameSender:
    """The sender of a prefill worker. The caller ends `context` after close(). ConfigError if the
    backend cannot be used."""
    if backend == "ray":
        with _optional("ray"):
            from transfer.backends.ray.backend import ray_sender  # noqa: PLC0415 - the import takes a second
        return ray_sender(memory, instance)
    if backend == "nixl":
        return nixl_sender(memory, instance, ZmqWire(context, security))

    ways: dict[str, Way] = {}
    if (at_device := open_device(device, backend)) is not None:
        ways[ON_DEVICE] = partial(DevicePool, at_device)
    if backend in ("auto", "shm"):
        ways[IN_PLACE] = MappedPool
    pools = Pools(ways, required="" if backend == "auto" else backend)
    return FrameSender(memory, instance, ZmqWire(context, security), pools=pools)


def open_receiver(
    backend: TransferBackend,
    memory: SharedPages,
    host: str,
    context: zmq.Context[Any],
    security: Security = OPEN,
    device: DevicePages | None = None,
) -> FrameReceiver:
    """The receiver of a decode worker that peers reach at `host`. ConfigError if the backend
    cannot be used or `host` is not this machine's."""
    if backend == "ray":
        with _optional("ray"):
            from transfer.backends.ray.backend import ray_receiver  # noqa: PLC0415 - as above
        return ray_receiver(memory, context)
    if backend == "nixl":
        return nixl_receiver(memory, ZmqArrivals(memory, host, context, security))
    if backend == "zmq":
        return FrameReceiver(memory, ZmqArrivals(memory, host, context, security))

    at_device = open_device(device, backend)
    handle = None if at_device is None else _tried(at_device.export, backend)
    seats = PoolOwner(SeatFile(memory.num_pages) if backend == "cuda_ipc" else memory, handle)
    writers = Writers(seats, required="" if backend == "auto" else backend)
    reader = None if at_device is None or handle is None else DeviceReader(at_device.pages, at_device.copies)
    return FrameReceiver(memory, ZmqArrivals(memory, host, context, security), writers, reader)


def open_device(device: DevicePages | None, backend: str) -> AtDevice | None:
    """The means to write to and from device memory, if the backend uses them and they work. ConfigError if it must."""
    if backend not in ("auto", "cuda_ipc"):
        return None
    if device is None:
        _go_without(backend, "the KV memory is not on a CUDA device", is_worth_a_line=False)
        return None
    from transfer.backends.cuda_ipc import at_device  # noqa: PLC0415 - the import takes seconds

    return _tried(lambda: at_device(device), backend)


def _tried(call: Callable[[], Tried], backend: str) -> Tried | None:
    """The call's result, or None if it raises WireError. ConfigError if the backend needs it."""
    try:
        return call()
    except WireError as error:
        _go_without(backend, error.message)
        return None


def _go_without(backend: str, reason: str, *, is_worth_a_line: bool = True) -> None:
    if backend == "cuda_ipc":
        raise ConfigError(f"transfer_backend is cuda_ipc, but {reason}")
    if is_worth_a_line:
        log.info("KV is not written on the device", why=reason)


@contextmanager
def _optional(extra: str) -> Iterator[None]:
    """Wraps the import of a backend whose library is an extra of Baton's package."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"transfer_backend is {extra}, but {error};"
            f" in Baton's folder: .venv/bin/pip install -c constraints.txt -e '.[{extra}]'"
        ) from error
