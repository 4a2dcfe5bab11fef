"""Hashes of prefixes: equal for equal beginnings, salts and keys, and for nothing else."""

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from protocol.prefixes import HASH_BYTES, HASH_KEY_BYTES, ID_BYTES, STRIDE, packed, prefix_hashes

KEY = bytes(range(HASH_KEY_BYTES))
IDS = st.lists(st.integers(0, 2), max_size=4 * STRIDE)


@given(IDS, IDS)
def test_they_agree_as_far_as_the_prompts_do(one: list[int], two: list[int]) -> None:
    both = [prefix_hashes(KEY, "", packed(ids)) for ids in (one, two)]
    assert [len(hashes) for hashes in both] == [len(one) // STRIDE, len(two) // STRIDE]
    for number, (first, second) in enumerate(zip(*both, strict=False), 1):
        assert len(first) == HASH_BYTES
        assert (first == second) == (one[: number * STRIDE] == two[: number * STRIDE])


@given(st.integers(0, 5 * STRIDE), st.integers(0, 5))
def test_they_can_be_continued(length: int, known: int) -> None:
    ids = packed([index // 3 for index in range(length)])
    whole = prefix_hashes(KEY, "salt", ids)
    known = min(known, len(whole))
    assert prefix_hashes(KEY, "salt", ids, known * STRIDE, whole[known - 1] if known else b"") == whole[known:]


def test_what_comes_before_matters_also_where_the_rest_is_the_same() -> None:
    same = [7] * STRIDE
    one, two = (prefix_hashes(KEY, "", packed([first] * STRIDE + same)) for first in (1, 2))
    assert len({*one, *two}) == 4


def test_another_salt_or_key_gives_other_hashes() -> None:
    ids = packed(range(2 * STRIDE))
    all_hashes = [
        prefix_hashes(*which, ids) for which in ((KEY, ""), (KEY, "a"), (KEY, "ä" * 256), (KEY[::-1], ""), (b"", ""))
    ]
    assert len({prefix_hash for hashes in all_hashes for prefix_hash in hashes}) == 10


def test_ids_are_packed_in_four_bytes() -> None:
    assert len(packed((0, 1, 2**32 - 1))) == 3 * ID_BYTES and packed(()) == b""


def test_a_hash_does_not_tell_the_next_one_without_the_key() -> None:
    ids = packed(range(2 * STRIDE))
    one, two = prefix_hashes(KEY, "", ids)
    assert two != blake2b(one + ids[STRIDE * ID_BYTES :], digest_size=HASH_BYTES).digest()
