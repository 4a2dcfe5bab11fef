"""Digests of a worker's model. KV may move only between workers whose fingerprints agree.

The table of weights has 8 bytes for each tensor and one compressed list of names. So 2048 tensors fit into the
first message of a worker.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protocol.errors import CheckpointError
from protocol.message import Blob, Message, Text

DIGEST_BYTES = 8
MAX_TENSORS = 2048
MAX_PACKED_BYTES = 44 * 1024  # of a model; with its draft the whole Register stays below MAX_STRANGER_BYTES
MAX_DRAFT_BYTES = 4 * 1024  # of a draft
MAX_NAMES_BYTES = 1024 * 1024  # of the list of names when it is unpacked


@dataclass(frozen=True)
class WeightsPrint(Message):
    """One model's configuration and weights. `sampled` and `full` hold DIGEST_BYTES for each tensor, as `names` lists
    them."""

    config: Text  # digest of the model configuration and the serving dtype
    names: Blob = b""  # the sorted tensor names, joined by line feeds, compressed with zlib
    sampled: Blob = b""  # digest of each tensor's dtype, shape and sampled blocks
    full: Blob = b""  # digest of each tensor's dtype, shape and all bytes; empty without --check-weights
    facts: dict[Text, Text] = field(default_factory=dict)  # of the model configuration: each field as JSON


@dataclass(frozen=True)
class Fingerprint(WeightsPrint):
    """The model of one worker, and its draft if it has one."""

    tokenizer: Text = ""  # digest of the folder's tokenizer.json; "" where there is none
    draft: WeightsPrint | None = None


def pack_weights(
    config: str,
    sampled: Mapping[str, bytes],
    full: Mapping[str, bytes] | None = None,
    tokenizer: str = "",
    facts: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The fingerprint of a model. `sampled` and `full` hold DIGEST_BYTES for each tensor name.

    CheckpointError when the tensors are too many, or their names too long, for one message.
    """
    return Fingerprint(**_packed(config, sampled, full, facts, MAX_PACKED_BYTES), tokenizer=tokenizer)


def pack_draft(
    config: str, sampled: Mapping[str, bytes], full: Mapping[str, bytes] | None, facts: Mapping[str, str]
) -> WeightsPrint:
    """The part of a fingerprint that tells the draft. Arguments and errors are those of pack_weights."""
    return WeightsPrint(**_packed(config, sampled, full, facts, MAX_DRAFT_BYTES))


def _packed(
    config: str,
    sampled: Mapping[str, bytes],
    full: Mapping[str, bytes] | None,
    facts: Mapping[str, str] | None,
    most: int,
) -> dict[str, Any]:
    """The fields of a WeightsPrint."""
    names = sorted(sampled)
    listed = "\n".join(names).encode()
    packed = zlib.compress(listed, 9)

    num_bytes = len(packed) + 2 * DIGEST_BYTES * len(names)
    if len(names) > MAX_TENSORS or len(listed) > MAX_NAMES_BYTES or num_bytes > most:
        raise CheckpointError(
            f"got {len(names)} tensors with {len(listed)} bytes of names, expected at most {MAX_TENSORS} tensors whose"
            f" digests and compressed names take at most {most} bytes"
        )

    return {
        "config": config,
        "names": packed,
        "sampled": b"".join(sampled[name] for name in names),
        "full": b"".join(full[name] for name in names) if full is not None else b"",
        "facts": dict(facts or {}),
    }


def digest_of(fingerprint: Fingerprint) -> str:
    """A short text that is equal for equal fingerprints only."""
    return hashlib.sha256(repr(fingerprint).encode()).hexdigest()[:16]


def difference(one: Fingerprint, other: Fingerprint, one_id: str, other_id: str) -> str | None:
    """One sentence with the first difference between two workers' models, or their drafts, and both values, or None.

    Digests of all bytes are compared only when both workers have them. Tokenizers are not compared.
    """
    unequal = _unequal(one, other, one_id, other_id)
    if unequal is not None or (one.draft is None and other.draft is None):
        return unequal
    if (ours := _algorithm(one)) != (theirs := _algorithm(other)) or one.draft is None or other.draft is None:
        return f"--speculative-algorithm is {ours} on {one_id}, {theirs} on {other_id}"
    unequal = _unequal(one.draft, other.draft, one_id, other_id)
    return unequal and f"draft: {unequal}"


def _algorithm(fingerprint: Fingerprint) -> str:
    return "none" if fingerprint.draft is None else fingerprint.draft.facts.get("algorithm", "unknown").strip('"')[:200]


def _unequal(one: WeightsPrint, other: WeightsPrint, one_id: str, other_id: str) -> str | None:
    if one.config != other.config:
        unequal = unequal_fact(one.facts, other.facts, one_id, other_id)
        return unequal or f"model fingerprint is {one.config} on {one_id}, {other.config} on {other_id}"

    both_full = bool(one.full and other.full)
    compared = (one.full, other.full) if both_full else (one.sampled, other.sampled)
    if one.names == other.names and compared[0] == compared[1]:
        return None

    # Some tensor differs, or a table is damaged.
    ones, others = _table(one, both_full), _table(other, both_full)
    if ones is None or others is None:
        damaged = one_id if ones is None else other_id
        return f"fingerprint: the table of tensors of {damaged} is damaged, expected {DIGEST_BYTES} bytes a name"
    if not (differing := sorted(_differing(ones, others))):
        return None  # the same names, compressed in another way
    name, value, other_value = differing[0]
    what = f"weights: the digest of tensor {name[:200]!r} is {value} on {one_id}, {other_value} on {other_id}"
    return f"{what} ({len(differing)} of {len({*ones, *others})} tensors differ)"


def unequal_fact(one: Mapping[str, str], other: Mapping[str, str], one_id: str, other_id: str) -> str | None:
    """One sentence with the first field in which two configurations differ and both values.

    None if they are equal or one of them is empty.
    """
    if not (one and other and (differing := _differing(one, other))):
        return None
    name, value, other_value = differing[0]
    return f"{name[:200]} is {value[:200]} on {one_id}, {other_value[:200]} on {other_id}"


class _Difference(NamedTuple):
    """A name to which two mappings give different values."""

    name: str
    value: str
    other_value: str


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[_Difference]:
    """The names whose values differ. A value that is not there is "missing"."""
    both = (_Difference(name, one.get(name, "missing"), other.get(name, "missing")) for name in {**one, **other})
    return [difference for difference in both if difference.value != difference.other_value]


def _table(fingerprint: WeightsPrint, use_full: bool) -> dict[str, str] | None:
    """Digests in hexadecimal by tensor name, or None if the number of names and digests differ."""
    unpacker = zlib.decompressobj()
    try:
        names = unpacker.decompress(fingerprint.names, MAX_NAMES_BYTES).decode().split("\n")
    except (zlib.error, UnicodeDecodeError):
        return None
    digests = fingerprint.full if use_full else fingerprint.sampled
    if not unpacker.eof or len(digests) != DIGEST_BYTES * len(names):
        return None
    starts = range(0, len(digests), DIGEST_BYTES)
    return {name: digests[start : start + DIGEST_BYTES].hex() for name, start in zip(names, starts, strict=True)}
