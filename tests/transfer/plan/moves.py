"""Moves one by one, as tests write them."""

from typing import NamedTuple

from transfer.plan import Moves


class Move(NamedTuple):
    """`num_bytes` from `source_start` on belong at `target_start`."""

    source_start: int
    target_start: int
    num_bytes: int


def listed(moves: Moves) -> list[Move]:
    columns = moves.source_starts_M.tolist(), moves.target_starts_M.tolist(), moves.sizes_M.tolist()
    return [Move(*row) for row in zip(*columns, strict=True)]
