"""Digests of a checkpoint's weights, so that workers with different weights never exchange KV.

A few blocks of each tensor are read. Their places depend on the tensor's name and size only, so all workers read the
same ones even if their files differ.
"""

from collections.abc import Callable, Iterator
from typing import Final

import xxhash

from model.checkpoint import Checkpoint

BLOCK_BYTES: Final = 4096
BLOCKS_PER_TENSOR: Final = 8  # so at most 64 MiB of one checkpoint, which has MAX_TENSORS at most


def sampled_digests(checkpoint: Checkpoint) -> dict[str, bytes]:
    """By tensor name: xxh3-64 of its dtype, shape and sampled blocks. A tensor of up to 32 KiB is read whole."""
    return {name: _digest(checkpoint, name, sample_places) for name in checkpoint}


def full_digests(checkpoint: Checkpoint) -> dict[str, bytes]:
    """By tensor name: xxh3-64 of its dtype, shape and all bytes."""
    return {name: _digest(checkpoint, name, lambda _, num_bytes: [(0, num_bytes)]) for name in checkpoint}


def sample_places(name: str, num_bytes: int) -> list[tuple[int, int]]:
    """[start, end) of the sampled blocks of a tensor with `num_bytes` bytes, ascending and within the tensor.

    The first and the last block are always read. Each of the others lies somewhere in its own part of the tensor.
    """
    if num_bytes <= BLOCKS_PER_TENSOR * BLOCK_BYTES:
        return [(0, num_bytes)]
    return [(start, start + BLOCK_BYTES) for start in _starts(name, num_bytes - BLOCK_BYTES)]


def _starts(name: str, last: int) -> Iterator[int]:
    yield 0
    num_parts = BLOCKS_PER_TENSOR - 2
    for part in range(num_parts):
        begin, end = last * part // num_parts, last * (part + 1) // num_parts
        yield begin + xxhash.xxh3_64_intdigest(name.encode(), seed=part) % (end - begin)
    yield last


def _digest(checkpoint: Checkpoint, name: str, places: Callable[[str, int], list[tuple[int, int]]]) -> bytes:
    dtype, shape = checkpoint.tensors[name]
    raw = checkpoint.raw(name)
    digest = xxhash.xxh3_64(f"{dtype} {list(shape)}\n".encode())
    for start, end in places(name, len(raw)):
        digest.update(raw[start:end])
    return digest.digest()
