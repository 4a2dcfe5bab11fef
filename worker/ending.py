"""Closes the parts of a worker at its end, also when its device or its group may not be waited for."""

from typing import Final

import zmq

from runtime.curve import Security
from scheduler.execution.executor import Executor
from worker.gateway_link import GatewayLink
from worker.parts import PeerLink

LINGER_MS: Final = 200


def close_all(
    link: PeerLink,
    ranks: PeerLink,
    gateway: GatewayLink,
    executor: Executor,
    security: Security,
    context: "zmq.Context[zmq.Socket[bytes]]",
    *,
    waits: bool,
) -> None:
    """Closes what a worker holds, after its last messages have had `LINGER_MS` to leave.

    Link and executor wait for the device when they close. Without `waits`, only sockets are closed. On a broken device
    waiting would raise, and that error would hide why the worker ends. In a group the forward thread may sit in a
    collective, into which another rank will never come.
    """
    ranks.close()
    if not waits:
        gateway.close(linger_ms=LINGER_MS)
        security.close()
        context.destroy(linger=LINGER_MS)  # with the sockets of the link
        return
    link.close()
    gateway.close(linger_ms=LINGER_MS)
    executor.close()
    security.close()
    context.term()
