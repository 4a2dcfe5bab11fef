r"""Frames whose KV is on its way into a peer's device memory: their headers leave when it is there, in order.

    begin -> (the device copies) -> done: the header may leave -> pop
                                \-> drop, when their transfer ends: waits for the device, then forgets them

Device work cannot be called back, and who is told that a transfer has stopped gives its pages to others: so an end
waits for it. That takes as long as the bytes in flight to one peer take, a few milliseconds at most; a device that does
not finish them finishes no forward either. What it does not know: how KV is moved, what a header says.
"""

from collections import deque
from dataclasses import dataclass

from transfer.in_place.moving import Moving
from transfer.plan.frames import KvFrame
from transfer.sending.transfer import SendTransfer


@dataclass(frozen=True, eq=False)
class MovingFrame:
    """One of them."""

    transfer: SendTransfer
    frame: KvFrame
    moving: Moving


class MovingFrames:
    """Of one peer, in the order in which they began; the device completes them in this order."""

    def __init__(self) -> None:
        self._frames: deque[MovingFrame] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def begin(self, transfer: SendTransfer, frame: KvFrame, moving: Moving) -> None:
        """The device has been given a frame."""
        self._frames.append(MovingFrame(transfer, frame, moving))

    def head(self) -> MovingFrame | None:
        """The oldest, if it is done; it stays until pop()."""
        return self._frames[0] if self._frames and self._frames[0].moving.done else None

    def pop(self) -> None:
        """The head's header has left."""
        self._frames.popleft()

    def drop(self, transfer: SendTransfer) -> None:
        """The transfer has ended: once this returns, nothing of it is read or written."""
        ended = [each for each in self._frames if each.transfer is transfer]
        if ended:
            ended[-1].moving.wait()
        self._frames = deque(each for each in self._frames if each.transfer is not transfer)
