"""The receiver's reports from a poll, and the reasons for which it refuses a frame."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.frame import FrameHeader, LastMessage


class Rejection(StrEnum):
    """Why a frame was not landed. A FATAL one from the right sender means that the KV cannot be used."""

    MALFORMED = "malformed"
    UNKNOWN_RESERVATION = "unknown_reservation"
    WRONG_SENDER = "wrong_sender"
    WRONG_ATTEMPT = "wrong_attempt"
    NOT_RECEIVING = "not_receiving"  # already delivered or failed
    ALREADY_LANDED = "already_landed"
    PARTLY_LANDED = "partly_landed"
    LAYER_RANGE = "layer_range"
    PAGE_RANGE = "page_range"
    NUM_TOKENS = "num_tokens"
    SIZE = "size"
    CHECK_KIND = "check_kind"  # a checksum of bytes instead of a device sum, or the reverse
    CHECKSUM = "checksum"


FATAL = frozenset(Rejection) - {
    Rejection.UNKNOWN_RESERVATION,
    Rejection.WRONG_SENDER,
    Rejection.WRONG_ATTEMPT,
    Rejection.NOT_RECEIVING,
    Rejection.ALREADY_LANDED,
}


@dataclass(frozen=True)
class FirstFrame:
    """The first frame of a reservation has landed: REQUESTED becomes RECEIVING."""

    reservation: int


@dataclass(frozen=True)
class Delivered:
    """Every announced frame has landed and the digest agrees. No frame is accepted any more.

    `on_device`: the KV is where the device computes. Otherwise it is in host memory and must still be copied there.
    """

    reservation: int
    last: LastMessage
    on_device: bool = False


@dataclass(frozen=True)
class TransferFailed:
    """The KV of this reservation cannot be used. No frame is accepted any more; release() is still due."""

    reservation: int
    reason: str


@dataclass(frozen=True)
class CreditReturned:
    """Payload bytes that left the receiver's queue, landed or not, since the last poll. Send a DataCredit for them.

    The instance is only claimed by frames. Ignore it if it is not a connected prefill worker.
    """

    sender_instance: int
    reservation: int
    num_bytes: int


@dataclass(frozen=True)
class FrameRejected:
    """A frame was not landed. `header` is None if it could not be read."""

    reason: Rejection
    header: FrameHeader | None


@dataclass(frozen=True)
class LastInDoubt:
    """Every KV frame of this reservation has arrived, but not the last frame; and a damaged frame of unknown sender
    came. That was the last frame, or the last frame is about to arrive."""

    reservation: int


ReceiverEvent = FirstFrame | Delivered | TransferFailed | LastInDoubt | CreditReturned | FrameRejected
