r"""Frames whose KV a device is copying to a peer. Their headers leave in order, once the KV is there.

    begin -> (the device copies) -> done: the header may leave -> pop
                                \-> drop, when their transfer ends: waits for the device, then forgets them

Device work cannot be called back, and the receiver of a stop gives the pages to other requests. So the end of a
transfer waits for the device: for as long as the bytes in flight to one peer take, a few milliseconds at most.
"""

from collections import deque
from dataclasses import dataclass

from transfer.in_place.device_moves import Moving
from transfer.plan.frames import KvFrame
from transfer.sending.transfer import SendTransfer


@dataclass(frozen=True, eq=False)
class MovingFrame:
    """One frame and its device work."""

    transfer: SendTransfer
    frame: KvFrame
    moving: Moving


class MovingFrames:
    """The frames of one peer, in the order in which they began. The device completes them in this order."""

    def __init__(self) -> None:
        self._frames: deque[MovingFrame] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def begin(self, transfer: SendTransfer, frame: KvFrame, moving: Moving) -> None:
        """Adds a frame that was given to the device."""
        self._frames.append(MovingFrame(transfer, frame, moving))

    def head(self) -> MovingFrame | None:
        """The oldest frame, if it is done. It stays until pop()."""
        return self._frames[0] if self._frames and self._frames[0].moving.done else None

    def pop(self) -> None:
        """The header of the head has left."""
        self._frames.popleft()

    def drop(self, transfer: SendTransfer) -> None:
        """The transfer has ended. When this returns, the device reads and writes nothing of it."""
        ended = [each for each in self._frames if each.transfer is transfer]
        if ended:
            ended[-1].moving.wait()
        self._frames = deque(each for each in self._frames if each.transfer is not transfer)
