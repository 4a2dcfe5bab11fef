"""Hashes that name the beginnings of prompts, so that a worker can tell the gateway what it has cached.

    hash of 0 tokens = H(salt),  hash of n + 64 tokens = H(hash of n tokens, the next 64 ids)

H is blake2b with the gateway's key. Without the key, nobody can test a guess of a prompt.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

ID_BYTES: Final = 4
STRIDE: Final = 64  # tokens from one hash to the next
HASH_BYTES: Final = 8
HASH_KEY_BYTES: Final = 16


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as caches and hashes take them: four bytes each."""
    return array("I", ids).tobytes()


def prefix_hashes(key: bytes, salt: str, ids: bytes, start: int = 0, before: bytes = b"") -> list[bytes]:
    """The hashes of the first 64, 128, ... tokens of packed `ids`.

    With `start`, a multiple of 64, those up to `start` are left out, and `before` is the last of them.
    """
    stride = STRIDE * ID_BYTES
    hashes = [before if start else blake2b(salt.encode(), digest_size=HASH_BYTES, key=key).digest()]
    for at in range(start * ID_BYTES, len(ids) - stride + 1, stride):
        hashes.append(blake2b(hashes[-1] + ids[at : at + stride], digest_size=HASH_BYTES, key=key).digest())
    return hashes[1:]
