"""Messages between a worker and the gateway, and how a request is sampled and ends: token ids, no text.

The gateway binds one ROUTER socket; workers dial it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import FailFast, Field

from protocol.fingerprint import Fingerprint
from protocol.grammar import GrammarText
from protocol.kv_layout import KvLayout
from protocol.logit_rules import LogitRules
from protocol.logprobs import Logprobs, LogprobsAsked, PromptLogprobsAsked
from protocol.message import (
    Boundary,
    Count,
    Endpoint,
    Flag,
    Id,
    Instance,
    Int,
    Ints,
    Message,
    Number,
    Positive,
    Seconds,
    Text,
    WorkerId,
)
from protocol.messages_group import GroupPlace
from protocol.prefixes import HASH_KEY_BYTES
from protocol.worker_facts import CacheNews, DraftInfo, Stamps, WorkerStats


class Role(StrEnum):
    """What a worker does. UNIFIED runs prefill and decode itself, without a transfer."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


class FinishReason(StrEnum):
    """Why a choice ended. STOP: EOS or a stop token. LENGTH: max_tokens. CANCELLED: the client left or cancelled.
    PREEMPTED: its worker has no memory for it. Only the first two travel in ChoiceTokens."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


@dataclass(frozen=True)
class SamplingParams(Message):
    """How tokens are drawn and when a choice ends. The gateway fills every field."""

    max_tokens: Int  # at least 1
    min_tokens: Int = 0  # EOS and stop tokens are not drawn before that many outputs
    temperature: Number = 1.0  # 0 is greedy
    top_k: Int = 0  # 0 is off
    top_p: Number = 1.0  # 1 is off
    min_p: Number = 0.0  # 0 is off
    seed: Int = 0  # 64-bit; noise is keyed by (seed, choice, position)
    stop_token_ids: Ints = ()
    eos_token_ids: Ints = ()
    ignore_eos: Flag = False
    rules: LogitRules | None = None  # None: no logit is changed
    logprobs: LogprobsAsked | None = None  # None: none are computed
    grammar: Text = ""  # the name of the grammar that the answer follows; "": none. See grammar.py

    @cached_property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end a choice: stop tokens, and EOS unless it is ignored. At a grammar's end nothing but EOS can
        be drawn, so there it always ends the choice."""
        is_ignored = self.ignore_eos and not self.grammar
        return frozenset(self.stop_token_ids) | (frozenset() if is_ignored else frozenset(self.eos_token_ids))


def finish_reason(params: SamplingParams, num_outputs: int, last_token: int) -> FinishReason | None:
    """Why a choice with `num_outputs` tokens, the last being `last_token`, has ended; None if it goes on."""
    if num_outputs >= params.min_tokens and last_token in params.ending_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_outputs >= params.max_tokens else None


@dataclass(frozen=True)
class RankEndpoint(Message):
    """Where one rank of a worker is reached."""

    data: Endpoint  # where it takes KV frames


RankEndpoints = Annotated[tuple[RankEndpoint, ...], Field(max_length=1)]  # a worker has one rank


@dataclass(frozen=True)
class WorkerAddress(Message):
    """How peers name and reach a worker."""

    worker_id: WorkerId
    instance: Instance
    peer: Endpoint = ""  # where a prefill worker takes jobs; other roles do not
    ranks: RankEndpoints = ()  # of a decode worker; other roles take no KV frames

    @property
    def data(self) -> str:
        """Where its only rank takes KV frames; "" if none does."""
        return self.ranks[0].data if self.ranks else ""


HashKey = Annotated[bytes, Field(strict=True, max_length=HASH_KEY_BYTES)]


# ---- worker to gateway ----


@dataclass(frozen=True)
class Register(Message):
    """Sent by a worker when it can serve, and again when the gateway asks or has restarted.

    The gateway answers Welcome, DeclaredLost, or Refused: a layout or model that differs from other workers', an id
    that a live worker of another role or host holds, an instance that may not return, or an epoch of its group that is
    over. It does not answer while a live worker of the same role and host holds the id, nor while ranks of its group
    are missing. The worker asks again.
    """

    address: WorkerAddress
    role: Role
    pid: Count
    host: Text
    layout: KvLayout
    fingerprint: Fingerprint
    vocab_size: Positive
    context_length: Positive  # tokens, prompt and outputs together
    max_running_requests: Positive
    max_total_tokens: Positive  # capacity of the page pool
    stats: WorkerStats
    backend: Text = "zmq"  # how KV reaches or leaves it; "" for unified
    encrypts_data: Flag = False  # whether it encrypts KV over TCP
    device: Text = ""  # where it computes: "cpu", or "cuda:1" by the numbers of its host
    margin: Count = 0  # tokens that each context may grow while another one is admitted
    may_lack_draft: Flag = False  # of a decode worker: see Hello
    draft: DraftInfo | None = None
    graphs: Text = ""  # CUDA graphs of a worker that decodes on a GPU: "captured", or "none: WHY"
    place: GroupPlace | None = None  # None: a worker of its own
    max_queued_requests: Positive = 2048  # that wait beside those that run


@dataclass(frozen=True)
class Heartbeat(Message):
    """Sent by a worker's loop several times a second. The gateway notes the time, the load and what is cached."""

    worker_id: WorkerId
    instance: Instance
    stats: WorkerStats
    launch_age_s: Seconds = 0.0  # age of the oldest launch in progress; 0 when idle
    cache: CacheNews = field(default_factory=CacheNews)


@dataclass(slots=True)
class ChoiceTokens(Message):
    """New tokens of one choice. `seq` is the index of the first among the choice's outputs.

    Not frozen: one is made for each token, and a frozen dataclass takes seven times as long to make.
    """

    request_id: Id
    attempt: Int
    choice: Int
    seq: Int
    token_ids: Ints
    finish: Text = ""  # "stop" or "length" (FinishReason), or "" while the choice goes on
    logprobs: Logprobs | None = None  # of these tokens, if the request asks for them


@dataclass(frozen=True)
class FirstToken(Message):
    """The first new token of every choice, seq 0 unless outputs were replayed. Sent by prefill as soon as it has
    sampled. The gateway delivers each token that the client has not received."""

    choices: Annotated[tuple[ChoiceTokens, ...], FailFast()]
    stamps: Stamps = ()
    num_cached: Count = 0  # prompt tokens whose KV prefill had


@dataclass(frozen=True)
class Tokens(Message):
    """New tokens of choices. Sent by decode (or unified) after each step. Decode's first message of a choice repeats
    prefill's token. The gateway orders tokens and drops duplicates by (attempt, seq)."""

    choices: Annotated[tuple[ChoiceTokens, ...], FailFast()]
    stamps: dict[Id, Stamps] = field(default_factory=dict)  # by request_id, when its last choice ends
    cached: dict[Id, Count] = field(default_factory=dict)  # by request_id, with its first token: tokens not computed


@dataclass(frozen=True)
class PromptLogprobs(Message):
    """Log-probabilities of prompt tokens from `start` on. Sent by prefill (or unified), before FirstToken, for each
    chunk of a prompt whose request asks; those of a long chunk come in several messages. The gateway holds the answer
    back until it has those of the whole prompt."""

    request_id: Id
    attempt: Int
    start: Count
    logprobs: Logprobs


@dataclass(frozen=True)
class RequestFailed(Message):
    """Sent by the decode or unified worker when a request cannot go on. `code` is from protocol/errors.py."""

    request_id: Id
    attempt: Int
    code: Text
    message: Text


@dataclass(frozen=True)
class Leaving(Message):
    """Sent by a worker that was told to end. The gateway assigns it and all of its group no more requests, and gives
    what they have not begun to other workers. It answers Leave once no request needs them any more."""

    worker_id: WorkerId
    instance: Instance


@dataclass(frozen=True)
class Left(Message):
    """Sent by a worker that ends now. The gateway forgets it and all of its group, and gives their requests to other
    workers. Behind Leaving that is no loss."""

    worker_id: WorkerId
    instance: Instance


# ---- gateway to worker ----


@dataclass(frozen=True)
class Welcome(Message):
    """The worker is a member. `gateway_instance` changes when the gateway restarts, and `hash_key` with it. The worker
    tells with its heartbeats what it caches, in hashes with this key; nothing if the key is empty. `num_flushes`: how
    many FlushCache its role was sent so far. A worker that has missed one forgets what it has cached."""

    gateway_instance: Instance
    hash_key: HashKey = b""
    num_flushes: Count = 0


@dataclass(frozen=True)
class Refused(Message):
    """The worker may not join. It logs `reason`, which names the difference, and ends with status 3; one that leaves
    just ends. Sent outside a session."""

    reason: Text


@dataclass(frozen=True)
class DeclaredLost(Message):
    """The worker was declared lost, and its session is over. Its requests are elsewhere, and its peers were told. It
    drops all that it has, closes its links, and registers as a new instance; one that leaves just ends. Never sent to a
    rank of a group. Sent outside a session."""

    reason: Text


@dataclass(frozen=True)
class RegisterAgain(Message):
    """The gateway does not know this worker, because it has restarted. The worker begins another session and answers
    Register. Sent outside a session."""

    gateway_instance: Instance


FIRST_PRIORITY, LAST_PRIORITY = -100, 100
# A smaller number is served earlier, as in vLLM; see runtime/waiting_line.py.
Priority = Annotated[int, Field(strict=True, ge=FIRST_PRIORITY, le=LAST_PRIORITY)]


@dataclass(frozen=True)
class Assign(Message):
    """Serve n choices of one prompt. A decode worker reserves pages and sends the job to `prefill`. For a unified
    worker `prefill` is None. Choices are numbered from `first_choice`.

    On a retry the last `num_replayed` of `prompt_ids` are outputs that the choice has already. They count as outputs
    for max_tokens and min_tokens, and the first new token has seq `num_replayed`. Such an Assign has one choice.
    """

    request_id: Id
    attempt: Int
    prompt_ids: Ints
    sampling: SamplingParams
    num_choices: Int
    prefill: WorkerAddress | None
    timeline: Flag = False  # collect stamps
    first_choice: Count = 0
    num_replayed: Count = 0
    resumes: Flag = False  # it was preempted, and comes before those that have not begun
    cache_salt: Text = ""  # requests with different salts share no KV
    priority: Priority = 0
    grammar: GrammarText = ""  # the text of the grammar that `sampling` names
    prompt_logprobs: PromptLogprobsAsked | None = None  # None: none are computed

    @property
    def key(self) -> tuple[str, int]:
        """(request_id, attempt), its name on a worker."""
        return self.request_id, self.attempt

    @property
    def num_left(self) -> int:
        """Outputs that each choice may still get."""
        return self.sampling.max_tokens - self.num_replayed

    @property
    def num_tokens(self) -> int:
        """Tokens of KV that each choice may need: all but the last output, which no forward reads."""
        return len(self.prompt_ids) + self.num_left - 1


@dataclass(frozen=True)
class CancelRequest(Message):
    """Stop this request, or one `choice` of it if not -1, and free its pages and rows. No answer."""

    request_id: Id
    attempt: Int
    choice: Int = -1


@dataclass(frozen=True)
class PeerLost(Message):
    """A worker of the other role is lost, or has left. Requests and jobs that need it fail."""

    worker_id: WorkerId
    instance: Instance
    has_left: Flag = False


@dataclass(frozen=True)
class Leave(Message):
    """No request needs this worker, or any rank of its group, and none will. It ends when nothing of its memory is in
    use."""


@dataclass(frozen=True)
class GatewayLeft(Message):
    """The last message of a gateway that ends in good order: what clients have asked is answered, or has failed. The
    worker takes the end of the connection for no fault. It dials until a gateway answers."""


@dataclass(frozen=True)
class Preempted(Message):
    """Sent by the decode or unified worker after a choice's last Tokens: it has no memory for more. The gateway has the
    choice resume, with its outputs, where there is room."""

    request_id: Id
    attempt: Int
    choice: Int


@dataclass(frozen=True)
class FlushCache(Message):
    """Forget the KV of earlier prompts. Answered with CacheFlushed."""

    number: Count


@dataclass(frozen=True)
class CacheFlushed(Message):
    """No request that is assigned from now on reuses KV from before the flush with this number."""

    number: Count


ToGateway = (
    Register
    | Heartbeat
    | PromptLogprobs
    | FirstToken
    | Tokens
    | RequestFailed
    | Preempted
    | Leaving
    | Left
    | CacheFlushed
)
ToMember = Assign | CancelRequest | PeerLost | FlushCache | Leave | GatewayLeft
ToWorker = Welcome | Refused | DeclaredLost | RegisterAgain | ToMember

TO_GATEWAY: Boundary[ToGateway] = Boundary(
    "worker to gateway",
    (Register, Heartbeat, PromptLogprobs, FirstToken, Tokens, RequestFailed, Preempted, Leaving, Left, CacheFlushed),
    max_bytes=4 * 1024 * 1024,
)
TO_WORKER: Boundary[ToWorker] = Boundary(
    "gateway to worker",
    (Welcome, Refused, DeclaredLost, RegisterAgain, Assign, CancelRequest, PeerLost, FlushCache, Leave, GatewayLeft),
)
