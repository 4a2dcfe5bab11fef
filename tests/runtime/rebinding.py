"""A bound socket that ends and comes back at the same endpoint, so that whoever dialled it loses a connection."""

from typing import Any

import zmq


def bound(context: Any, kind: int) -> tuple[Any, str]:
    """A socket on a port of the system's choice, and its endpoint."""
    socket = context.socket(kind)
    return socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


def bound_again(context: Any, kind: int, endpoint: str) -> Any:
    """A socket where another was, whose port is free in a moment."""
    socket = context.socket(kind)
    for _ in range(12_000):
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            socket.poll(10)
        else:
            return socket
    raise AssertionError(f"{endpoint} stays in use")
