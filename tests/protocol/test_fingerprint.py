"""The table of tensors: what differs is named, it fits into a first message, and a damaged one is refused."""

import random
import zlib
from dataclasses import replace

import pytest

from protocol.errors import CheckpointError
from protocol.fingerprint import (
    MAX_DRAFT_BYTES,
    MAX_NAMES_BYTES,
    MAX_TENSORS,
    Fingerprint,
    WeightsPrint,
    difference,
    pack_draft,
    pack_weights,
)
from protocol.kv_layout import KvLayout
from protocol.message import MAX_STRANGER_BYTES
from protocol.messages_gateway import TO_GATEWAY, RankEndpoint, Register, Role, WorkerAddress
from protocol.messages_handoff import TO_PREFILL, Hello
from protocol.worker_facts import KvPages, WorkerStats

LAYOUT = KvLayout.uniform(2, 1, 4, 16, "float32")
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


def digests(**values: int) -> dict[str, bytes]:
    return {name: value.to_bytes(8, "big") for name, value in values.items()}


ONE = replace(pack_weights("c", digests(a=1, b=2, d=3)), facts={"name": "m", "size": "2"})


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (pack_weights("c", digests(d=3, b=2, a=1)), None),
        (pack_weights("c", digests(a=1, b=2, d=3), tokenizer="t"), None),
        (pack_weights("x", digests(a=1, b=2, d=3)), "model fingerprint is c on one, x on two"),
        (replace(pack_weights("x", digests(a=1)), facts={"name": "m", "size": "3"}), "size is 2 on one, 3 on two"),
        (
            pack_weights("c", digests(a=1, b=7, d=8)),
            f"weights: the digest of tensor 'b' is {2:016x} on one, {7:016x} on two (2 of 3 tensors differ)",
        ),
        (
            pack_weights("c", digests(a=1, b=2, c=9, d=3)),
            f"weights: the digest of tensor 'c' is missing on one, {9:016x} on two (1 of 4 tensors differ)",
        ),
    ],
)
def test_the_first_difference_is_named_with_both_values(other: Fingerprint, sentence: str | None) -> None:
    assert difference(ONE, other, "one", "two") == sentence


DRAFT = pack_draft("e", digests(fc=1), None, {"algorithm": "eagle", "size": "2"})


@pytest.mark.parametrize(
    ("draft", "sentence"),
    [
        (DRAFT, None),
        (None, "--speculative-algorithm is eagle on one, none on two"),
        (replace(DRAFT, config="x"), "draft: model fingerprint is e on one, x on two"),
        (
            replace(DRAFT, config="x", facts={"algorithm": "eagle3", "size": "2"}),
            "--speculative-algorithm is eagle on one, eagle3 on two",
        ),
        (
            pack_draft("e", digests(fc=2), None, {"algorithm": "eagle"}),
            f"draft: weights: the digest of tensor 'fc' is {1:016x} on one, {2:016x} on two (1 of 1 tensors differ)",
        ),
        (
            replace(DRAFT, names=b""),
            "draft: fingerprint: the table of tensors of two is damaged, expected 8 bytes a name",
        ),
    ],
)
def test_another_draft_or_none_is_named(draft: WeightsPrint | None, sentence: str | None) -> None:
    assert difference(replace(ONE, draft=DRAFT), replace(ONE, draft=draft), "one", "two") == sentence
    assert difference(replace(ONE, draft=None), ONE, "one", "two") is None


def test_a_draft_that_would_not_fit_is_refused_at_the_worker() -> None:
    with pytest.raises(CheckpointError, match=f"at most {MAX_DRAFT_BYTES} bytes"):
        pack_draft("c", {f"{i}": bytes(8) for i in range(MAX_DRAFT_BYTES // 16)}, None, {})


def test_full_digests_count_only_where_both_have_them() -> None:
    full = pack_weights("c", digests(a=1, b=2, d=3), digests(a=4, b=5, d=6))
    other = pack_weights("c", digests(a=1, b=2, d=3), digests(a=4, b=5, d=7))
    assert difference(full, ONE, "one", "two") is None
    sentence = difference(full, other, "one", "two")
    assert sentence is not None and "tensor 'd'" in sentence


@pytest.mark.parametrize(
    "damage",
    [
        {"names": b"no zlib"},
        {"names": b""},
        {"names": zlib.compress(b"a\nb")},
        {"names": zlib.compress(b"a\nb\nd")[:-3]},
        {"names": zlib.compress(b"\n" * (MAX_NAMES_BYTES + 1))},
        {"names": zlib.compress(b"\xff\n\xff\n\xff")},
        {"sampled": b"short"},
    ],
)
def test_a_damaged_table_is_refused_by_the_name_of_its_worker(damage: dict[str, bytes]) -> None:
    damaged = replace(ONE, **damage)  # type: ignore[arg-type]
    for one, other, ids in ((damaged, ONE, ("bad", "good")), (ONE, damaged, ("good", "bad"))):
        sentence = difference(one, other, *ids)
        assert sentence is not None and "table of tensors of bad is damaged" in sentence


def test_the_largest_table_fits_into_the_first_message_of_a_worker() -> None:
    names = [f"model.layers.{i // 6}.{PARTS[i % 6]}.weight" for i in range(MAX_TENSORS)]
    rng = random.Random(1)
    noise = {name: rng.randbytes(8) for name in names}
    few = {name: rng.randbytes(8) for name in rng.sample(names, 100)}
    facts = {f"a_long_name_of_a_fact_{i}": "v" * 20 for i in range(40)}
    draft = pack_draft("c" * 32, few, few, facts)
    packed = replace(pack_weights("c" * 32, noise, noise, "t" * 32, facts), draft=draft)
    stats = WorkerStats(KvPages(1, 1), 0, 0, counters={f"a_long_counter_name_{i}": 1.5 for i in range(100)})
    address = WorkerAddress("w" * 128, 2**62, "tcp://" + "h" * 200, (RankEndpoint("tcp://" + "h" * 200),))
    register = Register(address, Role.DECODE, 1, "h" * 255, LAYOUT, packed, 9, 9, 9, 9, stats)
    assert TO_GATEWAY.decode(TO_GATEWAY.encode(register), MAX_STRANGER_BYTES) == register
    hello = Hello(address, LAYOUT, packed)
    assert TO_PREFILL.decode(TO_PREFILL.encode(hello), MAX_STRANGER_BYTES) == hello


@pytest.mark.parametrize(("count", "length"), [(MAX_TENSORS + 1, 4), (MAX_TENSORS, 600)])
def test_a_table_that_would_not_fit_is_refused_at_the_worker(count: int, length: int) -> None:
    with pytest.raises(CheckpointError, match=rf"got {count} tensors .* expected at most {MAX_TENSORS}"):
        pack_weights("c", {f"{i:0{length}}": bytes(8) for i in range(count)})
