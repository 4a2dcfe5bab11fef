"""Two ends of the zmq backend on real sockets, and whether a context lets go of them."""

import threading
from typing import Any

import zmq

from transfer.backends.zmq import ZmqArrivals, ZmqWire
from transfer.interfaces import SharedPages
from transfer.landing.frame_receiver import FrameReceiver
from transfer.sending.frame_sender import FrameSender
from transfer.sending.transfer import WINDOW_BYTES


class ZmqNetwork:
    """Sockets on the loopback, ports chosen by the system."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()

    def sender(self, memory: SharedPages, instance: int, window: int = WINDOW_BYTES) -> FrameSender:
        return FrameSender(memory, instance, ZmqWire(self.context), window)

    def receiver(self, memory: SharedPages) -> FrameReceiver:
        return FrameReceiver(memory, ZmqArrivals(memory, "127.0.0.1", self.context))


def ended(context: "zmq.Context[Any]") -> bool:
    """Whether it ends: it hangs if a socket was left open."""
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(120)
    return not ending.is_alive()
