"""An actor on decode's host: prefill workers call it with frames, and it hands them on to one decode worker.

    prefill --actor call: a parcel of frames--> porter --ZMQ on the loopback, zero-copy--> decode

So decode gets bytes, as from any backend, and nothing that Ray has unpacked. A call lasts until the kernel has its
frames. If the porter dies, frames of ended calls still arrive and Ray repeats the other calls, so that some frames
may arrive twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

Parcel = Sequence[Sequence[np.ndarray[Any, np.dtype[np.uint8]]]]  # frames of parts of bytes


class Porter:
    """The porter of the decode worker that binds `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._push.setsockopt(zmq.LINGER, 0)
        self._push.connect(endpoint)

    def is_ready(self) -> bool:
        """Always True. Its owner calls it once, to learn why the porter could not start."""
        return True

    def carry(self, parcel: Parcel) -> None:
        """Hands frames on in order. TypeError before the first one, if they are not made of bytes."""
        frames = [_views_of(frame) for frame in parcel]
        trackers = [self._send(frame) for frame in frames]
        for tracker in trackers[-1:]:
            tracker.wait()

    def _send(self, frame: list[memoryview]) -> zmq.MessageTracker:
        """Sends a frame. Its tracker is done when the kernel has this frame and all before it."""
        *before, last = frame
        for part in before:
            self._push.send(part, zmq.SNDMORE, copy=False)
        tracked = zmq.Frame(last, track=True, copy=False, copy_threshold=0)
        self._push.send(tracked, copy=False)
        tracker: zmq.MessageTracker | None = tracked.tracker
        assert tracker is not None
        return tracker

    def close(self) -> None:
        """Hands on no more frames."""
        self._push.close(0)
        self._context.term()


def _views_of(frame: object) -> list[memoryview]:
    if type(frame) is not list or not frame:
        raise TypeError(f"frame: got {type(frame).__name__}, expected a list of arrays")
    for part in frame:
        if type(part) is not np.ndarray or part.dtype != np.uint8 or part.ndim != 1 or not part.flags.c_contiguous:
            raise TypeError(f"part of a frame: got {type(part).__name__}, expected a contiguous array of bytes")
    return [memoryview(part) for part in frame]
