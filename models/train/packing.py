"""Packs tokenised documents into rows of equal length without cutting any of them.

Every row starts with the start of a document. Where nothing more fits, the row is padded; padding is not a target.
"""

from collections.abc import Iterable, Iterator

IGNORED = -100
_NUM_PENDING = 64


def pack(documents: Iterable[list[int]], row_tokens: int, end_id: int) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of (input ids, targets), each `row_tokens` long, targets shifted by one.

    `end_id` follows each document. A document longer than a row is cut, the only case in which one is.
    """
    source = iter(documents)
    pending: list[list[int]] = []
    while True:
        while len(pending) < _NUM_PENDING and (ids := next(source, None)) is not None:
            pending.append([*ids, end_id][: row_tokens + 1])
        if not pending:
            return
        tokens = _fill_row(pending, row_tokens + 1)
        num_padding = row_tokens + 1 - len(tokens)
        yield [*tokens, *[end_id] * num_padding][:-1], [*tokens, *[IGNORED] * num_padding][1:]


def _fill_row(pending: list[list[int]], capacity: int) -> list[int]:
    """Takes documents out of `pending`, oldest first, as long as one fits."""
    tokens: list[int] = []
    while (
        fitting := next((i for i, ids in enumerate(pending) if len(tokens) + len(ids) <= capacity), None)
    ) is not None:
        tokens += pending.pop(fitting)
    return tokens
