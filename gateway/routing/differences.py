"""How two workers differ, so that they cannot serve together: one sentence with both values."""

from collections.abc import Iterable, Mapping

from protocol.fingerprint import unequal_fact
from protocol.messages_gateway import Register, Role
from protocol.pairs import Serves, pair_fault


def difference(one: Register, other: Register) -> str | None:
    """The first difference that keeps KV or tokens from passing between two workers of one gateway; None if there is
    none."""
    ours, theirs = _serves(one), _serves(other)
    if not _needs_draft(one, other):
        ours, theirs = ours.without_draft, theirs.without_draft
    if (model := pair_fault(ours, theirs)) is not None:
        return model

    pairs: list[tuple[str, object, object]] = [("vocabulary size", one.vocab_size, other.vocab_size)]
    if other.backend and one.backend:
        pairs.append(("transfer backend", one.backend, other.backend))
        encrypts = ("not given", "given")
        pairs.append(("--encrypt-data", encrypts[one.encrypts_data], encrypts[other.encrypts_data]))
    return _unequal(pairs, one, other)


def difference_of_ranks(one: Register, other: Register) -> str | None:
    """The first difference between two ranks of one group, whose models and drafts are the same; None if there is
    none."""
    pairs: list[tuple[str, object, object]] = [
        ("size of the group", one.place and one.place.size, other.place and other.place.size),
        ("role", one.role, other.role),
        ("host", one.host, other.host),
    ]
    return _unequal(pairs, one, other) or pair_fault(_serves(one), _serves(other)) or difference(one, other)


def difference_from(
    message: Register, tokenizer: str, facts: Mapping[str, str], members: Iterable[Register]
) -> str | None:
    """How a worker that asks to join differs from the gateway's own folder, of which `tokenizer` and `facts` are known,
    or from the workers that serve; None if it does not. It is not compared with one that it is to replace."""
    worker_id, its_tokenizer = message.address.worker_id, message.fingerprint.tokenizer
    if its_tokenizer and tokenizer and its_tokenizer != tokenizer:
        return f"tokenizer.json: its digest is {its_tokenizer} on {worker_id}, {tokenizer} at the gateway"
    unequal = unequal_fact(message.fingerprint.facts, facts, worker_id, "the gateway")
    if unequal is not None:
        return unequal

    for other in members:
        if not _replaces(message, other) and (unequal := difference(message, other)):
            return unequal
    return None


def _replaces(one: Register, other: Register) -> bool:
    is_same_group = one.place is not None and other.place is not None and one.place.group == other.place.group
    return is_same_group or one.address.worker_id == other.address.worker_id


def _serves(worker: Register) -> Serves:
    return Serves(worker.address.worker_id, worker.layout, worker.fingerprint)


def _unequal(pairs: list[tuple[str, object, object]], one: Register, other: Register) -> str | None:
    for what, got, expected in pairs:
        if got != expected:
            return f"{what} is {got} on {one.address.worker_id}, {expected} on {other.address.worker_id}"
    return None


def _needs_draft(one: Register, other: Register) -> bool:
    """Whether the two may become a pair, which needs one draft unless decode goes without."""
    are_pair = {one.role, other.role} == {Role.PREFILL, Role.DECODE}
    return are_pair and not (one if one.role is Role.DECODE else other).may_lack_draft
