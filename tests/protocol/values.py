"""Values of every type that a field of a message may have; only the words of protocol.message are known."""

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from protocol.grammar import GrammarText
from protocol.kv_layout import ITEM_BYTES, KvLayout, LayerGroup
from protocol.logprobs import MAX_TOP_LOGPROBS, NumTop
from protocol.message import (
    MAX_COUNT,
    MAX_INSTANCE,
    Blob,
    Boundary,
    Count,
    Endpoint,
    Flag,
    Id,
    Instance,
    Int,
    Number,
    Positive,
    Seconds,
    Text,
    WorkerId,
)
from protocol.messages_gateway import (
    FIRST_PRIORITY,
    LAST_PRIORITY,
    TO_GATEWAY,
    TO_WORKER,
    HashKey,
    Priority,
    RankEndpoint,
    RankEndpoints,
    Role,
    ToGateway,
    ToWorker,
)
from protocol.messages_group import StepShape
from protocol.messages_handoff import TO_DECODE, TO_PREFILL, ToDecode, ToPrefill
from protocol.worker_facts import TIME_EDGES_S, BucketCounts, PrefixHash
from scheduler.plan import OPERATIONS, OUTCOMES, Operation, Outcome
from transfer.offers import ANSWER, OFFER, Answer, IpcHandle, PoolOffer

PRINTABLE = st.characters(min_codepoint=ord("!"), max_codepoint=ord("~"))
SIZE = st.integers(1, 2**20)
GROUP = st.builds(LayerGroup, SIZE, SIZE, SIZE, st.integers(0, 4))
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    Int: st.integers(-(2**63), 2**64 - 1),
    Count: st.integers(0, MAX_COUNT),
    Positive: st.integers(1, MAX_COUNT),
    Instance: st.integers(0, MAX_INSTANCE),
    Number: st.floats(allow_nan=False, allow_infinity=False),
    Seconds: st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    Flag: st.booleans(),
    Text: st.text(max_size=20),
    Blob: st.binary(max_size=20),
    HashKey: st.binary(max_size=16),
    PrefixHash: st.binary(min_size=8, max_size=8),
    IpcHandle: st.binary(min_size=64, max_size=64).map(bytes.hex),
    GrammarText: st.text(max_size=20),
    Id: st.text(min_size=1, max_size=20),
    NumTop: st.integers(0, MAX_TOP_LOGPROBS),
    Priority: st.integers(FIRST_PRIORITY, LAST_PRIORITY),
    WorkerId: st.text(PRINTABLE, min_size=1, max_size=20),
    Endpoint: st.text(PRINTABLE, max_size=20),
    type(None): st.none(),
    Role: st.sampled_from(Role),
    LayerGroup: GROUP,
    KvLayout: st.builds(
        KvLayout,
        st.lists(GROUP, min_size=1, max_size=3).map(tuple),
        SIZE,
        st.sampled_from(sorted(ITEM_BYTES)),
    ),
}
NUM_BUCKETS = len(TIME_EDGES_S) + 1


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of the type of one field, or whole messages."""
    inner, origin = get_args(kind), get_origin(kind)
    if kind == BucketCounts:
        return st.binary(min_size=NUM_BUCKETS, max_size=NUM_BUCKETS).map(tuple)
    if kind == RankEndpoints:
        return st.lists(values_of(RankEndpoint), max_size=1).map(tuple)
    if origin is Annotated and get_origin(inner[0]) is tuple:
        return values_of(inner[0])
    if origin is tuple and inner[-1] is not Ellipsis:
        return st.tuples(*map(values_of, inner))
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=4).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=4)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if inner and origin is not Annotated:  # a union
        return st.one_of(*map(values_of, inner))
    is_record = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, StepShape))
    assert is_record, f"{kind} is converted on arrival; use a word of protocol.message"
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return st.builds(kind, **{name: values_of(hints[name]) for name in names})


BOUNDARIES: list[tuple[Boundary[Any], tuple[type[Any], ...]]] = [
    (TO_GATEWAY, get_args(ToGateway)),
    (TO_WORKER, get_args(ToWorker)),
    (TO_PREFILL, get_args(ToPrefill)),
    (TO_DECODE, get_args(ToDecode)),
    (OFFER, (PoolOffer,)),
    (ANSWER, (Answer,)),
    (OPERATIONS, get_args(Operation)),
    (OUTCOMES, get_args(Outcome)),
]


KINDS = [(boundary, kind) for boundary, kinds in BOUNDARIES for kind in kinds]


def name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else ""
