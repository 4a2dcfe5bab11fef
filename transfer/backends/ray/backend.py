"""Frames over Ray, for clusters where only Ray's ports are open: calls of an actor, the porter, on decode's host.

    decode   makes its porter on its own host and gives the porter's name as its data address
    prefill  calls the porter; Ray's object store moves what is large

Both join an existing cluster as drivers: the one that RAY_ADDRESS names, else the one on this host. A porter ends with
its decode worker. If it ends alone, Ray restarts it and repeats the calls that had not ended. Any process that reaches
Ray can run code there, so the cluster must be closed.
"""

import os
import signal
import socket
import uuid
from concurrent.futures import Future
from typing import Any

import ray
import zmq
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from protocol.errors import ConfigError, WireError
from runtime.address import MAX_PORT, is_loopback
from transfer.backends.ray.parcel_wire import SCHEME, ParcelWire
from transfer.backends.ray.porter import Parcel, Porter
from transfer.backends.zmq import ZmqArrivals
from transfer.interfaces import PageMemory
from transfer.landing.frame_receiver import FrameReceiver
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES

NAMESPACE = "baton"  # of the porters' names
PORTERS = f"{SCHEME}{NAMESPACE}/"
LOOPBACK = "127.0.0.1"
KNOCK_S = 5.0  # to connect to a cluster's head
PORTER_START_S = 60.0  # a process of its own, on a host that may be busy


def ray_sender(memory: PageMemory, instance: int, window: int = WINDOW_BYTES) -> FrameSender:
    """A FrameSender. ConfigError if no Ray cluster is reached."""
    join_cluster()
    return FrameSender(memory, instance, ParcelWire(RayPorter), window)


def ray_receiver(memory: PageMemory, context: zmq.Context[Any]) -> FrameReceiver:
    """A FrameReceiver with a porter on this host. ConfigError if no Ray cluster is reached or no porter starts."""
    join_cluster()
    return FrameReceiver(memory, RayArrivals(memory, context))


def join_cluster() -> None:
    """Makes this process a driver of the cluster. ConfigError names why it cannot. Idempotent, main thread only."""
    if ray.is_initialized():
        return

    address = os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.rpartition(":")
    if address != "auto" and (not host or "/" in host or not port.isdecimal() or int(port) > MAX_PORT):
        raise ConfigError(f"RAY_ADDRESS: got {address!r}, expected HOST:PORT of a cluster that has a node on this host")
    if address != "auto":
        _knock(host.strip("[]"), int(port))

    ours = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"transfer_backend is ray, but no cluster is reached at {address!r}: {error}") from error
    finally:
        for number, handler in ours.items():  # Ray has replaced our handlers
            signal.signal(number, handler)


def _knock(host: str, port: int) -> None:
    """ConfigError if nothing listens there. Ray itself would try for minutes and ignore signals meanwhile."""
    reason = ""
    for address in (host, *([ray.util.get_node_ip_address()] if is_loopback(host) else [])):  # as Ray reads it
        try:
            socket.create_connection((address, port), KNOCK_S).close()
        except OSError as error:
            reason = str(error)
        else:
            return
    raise ConfigError(f"RAY_ADDRESS: no cluster is reached at '{host}:{port}': {reason}")


class RayPorter:
    """The porter that an endpoint names, as prefill sees it."""

    def __init__(self, endpoint: str) -> None:
        """WireError if there is no such porter."""
        try:
            self._carry: Any = ray.get_actor(endpoint.removeprefix(PORTERS), NAMESPACE).carry
        except (RayError, ValueError, AttributeError) as error:  # AttributeError: an actor of another kind
            raise WireError(f"data address {endpoint!r}: {error}") from error

    def carry(self, parcel: Parcel) -> "Future[Any]":
        """See transfer.backends.ray.parcel_wire.PorterHandle."""
        try:
            future: Future[Any] = self._carry.remote(parcel).future()
        except RayError as error:
            raise WireError(f"the porter cannot be called: {error}") from error
        return future


class RayArrivals(ZmqArrivals):
    """See interfaces.Arrivals. The porter is made here and hands frames on by a socket within the host."""

    backend = "ray"
    is_ordered = False  # calls that Ray repeats may arrive after later ones

    def __init__(self, memory: PageMemory, context: zmq.Context[Any]) -> None:
        """ConfigError if the porter does not start."""
        super().__init__(memory, LOOPBACK, context)
        name = f"porter-{uuid.uuid4().hex}"
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        made = ray.remote(Porter).options(
            name=name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=here,
        )

        try:
            self._porter = made.remote(self.address)
            ray.get(self._porter.is_ready.remote(), timeout=PORTER_START_S)
        except RayError as error:
            super().close()
            raise ConfigError(f"transfer_backend is ray, but Ray starts no actor on this host: {error}") from error
        self.address = f"{PORTERS}{name}"

    def close(self) -> None:
        ray.kill(self._porter)
        super().close()
