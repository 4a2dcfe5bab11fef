"""Messages between a decode worker and a prefill worker. KV itself travels as frames (frame.py).

Prefill binds a ROUTER socket and decode dials it. One ordered connection, so a cancel cannot overtake its job.
"""

from dataclasses import dataclass

from protocol.codec import Boundary
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.message import Blob, Count, Flag, Id, Instance, Int, Ints, IpcHandle, Message, Positive, Text
from protocol.messages_gateway import Stamps, WorkerAddress
from protocol.request import SamplingParams

# ---- decode to prefill ----


@dataclass(frozen=True)
class DeviceHandle(Message):
    """Device memory that a process of the same host can map."""

    handle: IpcHandle  # the driver's name of an allocation
    offset: Count  # bytes from the beginning of the allocation
    num_bytes: Positive


@dataclass(frozen=True)
class PoolOffer(Message):
    """Decode's KV memory, for a prefill worker on the same `host` that can open descriptor `fd` of process `pid`.

    It may write there, or into `device`, while it holds `seat`.
    """

    host: Text
    pid: Positive
    fd: Count  # the pages in host memory, or a file of seats only
    num_pages: Positive  # of each layer
    seat: Count
    device: DeviceHandle | None = None  # the pages where decode computes


@dataclass(frozen=True)
class Hello(Message):
    """The first message of a session: whatever was said in the one before is void. Prefill compares layout and
    fingerprint and answers HelloAccepted or HelloRefused. `pool` is there where KV may be written in place."""

    address: WorkerAddress
    layout: KvLayout
    fingerprint: Fingerprint
    pool: PoolOffer | None = None
    to: Instance | None = None  # whom it means; who has got the port of that process does nothing


@dataclass(frozen=True)
class PrefillJob(Message):
    """Compute this prompt. Send the first tokens to the gateway, and the KV to decode's data address under
    `reservation`, or write it into `pages` if there are any. `first_choice` and `num_replayed` are as in Assign."""

    request_id: Id
    attempt: Int
    reservation: Int
    prompt_ids: Ints
    sampling: SamplingParams
    num_choices: Int
    timeline: Flag = False
    first_choice: Count = 0
    num_replayed: Count = 0
    pages: Ints = ()  # decode's, in prompt order, to be written in place; none: KV goes as frames


@dataclass(frozen=True)
class CancelJob(Message):
    """Drop the job in any state. Its pages become free once the transport has released them. Prefill always answers
    JobStopped."""

    request_id: Id
    attempt: Int
    reservation: Int


@dataclass(frozen=True)
class KvDelivered(Message):
    """Every frame has landed and the digest agrees. Prefill frees the job's pages."""

    request_id: Id
    attempt: Int
    reservation: Int


@dataclass(frozen=True)
class DataCredit(Message):
    """`num_bytes` of a reservation's frame payload have left the receiver's queue, so the sender may send that many
    more. Bytes that it sent before them have left the queue too, or are lost."""

    reservation: Int
    num_bytes: Count


# ---- prefill to decode ----


@dataclass(frozen=True)
class HelloAccepted(Message):
    """Jobs may flow: at most `job_tokens` queued prompt tokens (a job is allowed whenever any credit is left). KV comes
    in pages of `layout`; decode refuses the pair where that is not to be had. `in_place`: prefill has taken the seat
    that decode offered, and decode looks whether that is so. `device_writer`: the process that writes into decode's
    device memory, if it is that which it has mapped. `export`: what decode needs to read prefill's pages, where
    the backend does that."""

    address: WorkerAddress
    job_tokens: Count
    layout: KvLayout
    in_place: Flag = False
    device_writer: Count = 0  # a process id; 0: none
    export: Blob = b""


@dataclass(frozen=True)
class HelloRefused(Message):
    """Sent outside a session, which it ends. KV cannot move between these two; `reason` names both values. Decode fails
    what was assigned to this pair."""

    reason: Text


@dataclass(frozen=True)
class JobCredit(Message):
    """The job's prompt was computed or dropped. It no longer counts among the queued prompt tokens."""

    reservation: Int


@dataclass(frozen=True)
class JobStopped(Message):
    """Answers CancelJob, also for an unknown job: prefill writes and sends no more KV of it. JobFailed and
    JobFinishedEarly promise the same."""

    request_id: Id
    attempt: Int
    reservation: Int


@dataclass(frozen=True)
class JobFailed(Message):
    """Prefill cannot finish the job. Decode fails the request."""

    request_id: Id
    attempt: Int
    reservation: Int
    code: Text
    message: Text


@dataclass(frozen=True)
class JobFinishedEarly(Message):
    """The first token ends every choice, so no KV follows. Decode releases the reservation and closes the request."""

    request_id: Id
    attempt: Int
    reservation: Int
    first_tokens: Ints  # by choice
    stamps: Stamps = ()


ToPrefill = Hello | PrefillJob | CancelJob | KvDelivered | DataCredit
ToDecode = HelloAccepted | HelloRefused | JobCredit | JobStopped | JobFailed | JobFinishedEarly

TO_PREFILL: Boundary[ToPrefill] = Boundary("decode to prefill", (Hello, PrefillJob, CancelJob, KvDelivered, DataCredit))
TO_DECODE: Boundary[ToDecode] = Boundary(
    "prefill to decode", (HelloAccepted, HelloRefused, JobCredit, JobStopped, JobFailed, JobFinishedEarly)
)
