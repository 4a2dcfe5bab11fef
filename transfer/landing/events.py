"""What the receiver reports from a poll, and why a frame was not landed."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.frame import FrameHeader, LastMessage


class Rejection(StrEnum):
    """Why a frame was not landed. One of FATAL, from the right sender, means that the KV will never be whole."""

    MALFORMED = "malformed"
    UNKNOWN_RESERVATION = "unknown_reservation"
    WRONG_SENDER = "wrong_sender"
    WRONG_ATTEMPT = "wrong_attempt"
    NOT_RECEIVING = "not_receiving"  # delivered or failed already
    ALREADY_LANDED = "already_landed"
    PARTLY_LANDED = "partly_landed"
    LAYER_RANGE = "layer_range"
    PAGE_RANGE = "page_range"
    NUM_TOKENS = "num_tokens"
    SIZE = "size"
    CHECK_KIND = "check_kind"  # a checksum of bytes where a sum of the device is due, or the other way round
    CHECKSUM = "checksum"


FATAL = frozenset(
    {
        Rejection.MALFORMED,
        Rejection.PARTLY_LANDED,
        Rejection.LAYER_RANGE,
        Rejection.PAGE_RANGE,
        Rejection.NUM_TOKENS,
        Rejection.SIZE,
        Rejection.CHECK_KIND,
        Rejection.CHECKSUM,
    }
)


@dataclass(frozen=True)
class FirstFrame:
    """The first frame of a reservation has landed: REQUESTED becomes RECEIVING."""

    reservation: int


@dataclass(frozen=True)
class Delivered:
    """Every frame of the announced plan is in place and the digest agrees. No frame is accepted from here on.

    `on_device`: KV is where the device computes; else it is in host memory, and reaches the device from there.
    """

    reservation: int
    last: LastMessage
    on_device: bool = False


@dataclass(frozen=True)
class TransferFailed:
    """The KV of this reservation will never be right. No frame is accepted from here on; release() is still due."""

    reservation: int
    reason: str


@dataclass(frozen=True)
class CreditReturned:
    """Payload bytes that have left the receiver's queue, landed or not, since the last poll: send it a DataCredit.

    The instance is what frames claim; one that is not a connected prefill worker is to be ignored.
    """

    sender_instance: int
    reservation: int
    num_bytes: int


@dataclass(frozen=True)
class FrameRejected:
    """A frame was not landed. `header` is absent when not even that could be read."""

    reason: Rejection
    header: FrameHeader | None


@dataclass(frozen=True)
class LastInDoubt:
    """Every KV frame of this reservation has come; the last frame has not, but a damaged one of which nobody can tell
    whose it was. The last is due in a moment, or was that."""

    reservation: int


ReceiverEvent = FirstFrame | Delivered | TransferFailed | LastInDoubt | CreditReturned | FrameRejected
