"""Messages between a decode worker and a prefill worker. KV itself travels as frames (frame.py).

Prefill binds a ROUTER socket and decode dials it. One ordered connection, so a cancel cannot overtake its job.
A job is named by its reservation at decode, a number that is never used again.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import FailFast

from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout
from protocol.logprobs import Logprobs
from protocol.message import Blob, Boundary, Count, Flag, Instance, Int, Ints, Message, Text
from protocol.messages_gateway import Assign, WorkerAddress
from protocol.worker_facts import Stamps

# ---- decode to prefill ----


@dataclass(frozen=True)
class Hello(Message):
    """The first message of a session; it ends the session before. Prefill compares layout and fingerprint and answers
    HelloAccepted or HelloRefused. Only transfer/ reads `offer`. `may_lack_draft`: if prefill has no draft, or another
    one, decode takes KV without the draft's."""

    address: WorkerAddress
    layout: KvLayout
    fingerprint: Fingerprint
    offer: Blob = b""  # how KV may reach decode; see transfer/offers.py
    to: Instance | None = None  # the prefill worker meant; another process that got its port ignores the Hello
    may_lack_draft: Flag = False


@dataclass(frozen=True)
class PrefillJob(Message):
    """Compute the prompt of `assign`. Send the first tokens to the gateway, and the KV of tokens from `start` on to
    decode's data address under `reservation`, or write it into `pages`."""

    assign: Assign
    reservation: Int
    pages: Ints | None = None  # decode's pages from `start` on, to be written in place; None: KV goes as frames
    start: Count = 0  # a token that begins a page on both sides; decode has the KV before it


@dataclass(frozen=True)
class CancelJob(Message):
    """Drop the job in any state. Its pages become free once the transport has released them. Prefill always answers
    JobStopped."""

    reservation: Int


@dataclass(frozen=True)
class KvDelivered(Message):
    """Every frame has landed and the digest agrees. Prefill frees the job's pages."""

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
    """Decode may send jobs. It refuses the pair if it cannot take KV in pages of `layout`, which lacks the draft's
    layers if these do not come."""

    address: WorkerAddress
    job_tokens: Count  # queued prompt tokens that decode may reach; a job may be sent while fewer are queued
    layout: KvLayout
    offer: Blob = b""  # prefill's answer to decode's offer


@dataclass(frozen=True)
class HelloRefused(Message):
    """KV cannot move between these two workers; `reason` names both values. Decode fails the pair's requests.

    It ends the session and is not counted in it.
    """

    reason: Text


@dataclass(frozen=True)
class JobCredit(Message):
    """The job's prompt was computed, so it no longer counts among the queued prompt tokens. A job that ends without
    this message stops counting when decode closes its reservation."""

    reservation: Int


@dataclass(frozen=True)
class JobStopped(Message):
    """Answers CancelJob, also for an unknown job: prefill writes and sends no more KV of it. JobFailed and
    JobFinishedEarly promise the same."""

    reservation: Int


@dataclass(frozen=True)
class JobFailed(Message):
    """Prefill cannot finish the job. Decode fails the request."""

    reservation: Int
    code: Text
    message: Text


@dataclass(frozen=True)
class JobFinishedEarly(Message):
    """The first token ends every choice, so no KV follows. Decode releases the reservation and closes the request."""

    reservation: Int
    first_tokens: Ints  # by choice
    stamps: Stamps = ()
    num_cached: Count = 0  # prompt tokens whose KV prefill had
    logprobs: Annotated[tuple[Logprobs, ...], FailFast()] = ()  # of the first tokens, if the request asks for them


ToPrefill = Hello | PrefillJob | CancelJob | KvDelivered | DataCredit
ToDecode = HelloAccepted | HelloRefused | JobCredit | JobStopped | JobFailed | JobFinishedEarly

TO_PREFILL: Boundary[ToPrefill] = Boundary("decode to prefill", (Hello, PrefillJob, CancelJob, KvDelivered, DataCredit))
TO_DECODE: Boundary[ToDecode] = Boundary(
    "prefill to decode", (HelloAccepted, HelloRefused, JobCredit, JobStopped, JobFailed, JobFinishedEarly)
)
