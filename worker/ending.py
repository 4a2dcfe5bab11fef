"""Closes the parts of a worker at its end, also when its device is broken and may not be waited for."""

from typing import Final

import zmq

from runtime.bus import Dealer
from runtime.curve import Security
from scheduler.execution.executor import Executor
from worker.loop import PeerLink

LINGER_MS: Final = 200


def close_all(
    link: PeerLink,
    gateway: Dealer,
    executor: Executor,
    security: Security,
    context: "zmq.Context[zmq.Socket[bytes]]",
    *,
    device_is_broken: bool,
) -> None:
    """Closes what a worker holds, after its last messages have had `LINGER_MS` to leave.

    Link and executor wait for the device when they close. On a broken one only sockets are closed: waiting would raise,
    and that error would hide why the worker ends.
    """
    if device_is_broken:
        gateway.close(linger_ms=LINGER_MS)
        security.close()
        context.destroy(linger=LINGER_MS)  # with the sockets of the link
        return
    link.close()
    gateway.close(linger_ms=LINGER_MS)
    executor.close()
    security.close()
    context.term()
