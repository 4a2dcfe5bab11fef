"""Which bytes of a sender's pages go where in a receiver's, when the two cut the same KV differently. Pure.

    shard   the heads that one rank holds of a layer, in pages of its own size
    part    the heads that one sender rank sends to one receiver rank
    move    a run of bytes that lies in one piece on both sides

Each byte of each receiver comes from exactly one sender. Where ranks outnumber KV heads, neighbours hold copies of one
head, and the copies take turns in sending it. What it does not know: frames, credit, how bytes travel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.kv_layout import ITEM_BYTES, KvLayout


@dataclass(frozen=True)
class Part:
    """Heads `heads` of the model go from one rank to another."""

    sender_rank: int
    receiver_rank: int
    heads: range


@dataclass(frozen=True)
class Shard:
    """Tokens from `first_token` on, which begins a page, in `pages` (the owner's numbers) of one layer of one rank.

    The rank holds heads [first_head, first_head + layout.num_kv_heads) of the model.
    """

    layout: KvLayout
    pages: Sequence[int]
    first_head: int = 0
    first_token: int = 0

    def start_of(self, token: int, half: int, head: int) -> int:
        """The byte, counted from page 0 of the layer, at which K (half 0) or V (half 1) of a token's head begins."""
        layout = self.layout
        index, slot = divmod(token - self.first_token, layout.page_size)
        row = (self.pages[index] * 2 + half) * layout.page_size + slot
        return row * layout.token_bytes + (head - self.first_head) * head_bytes(layout)


@dataclass(frozen=True, slots=True)
class Move:
    """`num_bytes` from `source_start` on belong at `target_start`; both count from page 0 of a layer."""

    source_start: int
    target_start: int
    num_bytes: int


def head_bytes(layout: KvLayout) -> int:
    """Bytes of K (or of V) of one head of one token."""
    return layout.head_dim * ITEM_BYTES[layout.dtype]


def heads_of_rank(num_kv_heads: int, tp_size: int, rank: int) -> range:
    """The KV heads that a rank holds; with more ranks than heads, each head is held by as many neighbours."""
    assert num_kv_heads % tp_size == 0 or tp_size % num_kv_heads == 0, (num_kv_heads, tp_size)
    assert 0 <= rank < tp_size, (rank, tp_size)
    count = max(1, num_kv_heads // tp_size)
    first = rank * num_kv_heads // tp_size
    return range(first, first + count)


def parts_of(num_kv_heads: int, sender_tp: int, receiver_tp: int, layer: int) -> list[Part]:
    """Who sends what to whom in `layer`. Copies of a head take turns from receiver to receiver and layer to layer."""
    width = max(1, num_kv_heads // sender_tp)  # heads of one sender
    copies = max(1, sender_tp // num_kv_heads)  # senders that hold the same head
    takers = max(1, receiver_tp // num_kv_heads)  # receivers that want the same head
    parts: list[Part] = []
    for receiver in range(receiver_tp):
        wanted = heads_of_rank(num_kv_heads, receiver_tp, receiver)
        turn = (layer * takers + receiver % takers) % copies
        for group in range(wanted.start // width, -(-wanted.stop // width)):
            heads = range(max(wanted.start, group * width), min(wanted.stop, (group + 1) * width))
            parts.append(Part(group * copies + turn, receiver, heads))
    return parts


def moves_of(source: Shard, target: Shard, heads: range, tokens: range) -> list[Move]:
    """How K and V of `heads` of `tokens` get from one shard to another, in the longest runs that ascend with the
    sender's pages. No byte of another token or head is touched."""
    ours, theirs = source.layout, target.layout
    width = len(heads) * head_bytes(ours)
    whole_rows = width == ours.token_bytes == theirs.token_bytes
    moves = _Joined()
    for page in _cut(tokens, ours.page_size):
        if whole_rows and len(page) == ours.page_size == theirs.page_size:
            start = page.start
            moves.add(source.start_of(start, 0, heads.start), target.start_of(start, 0, heads.start), ours.page_bytes)
            continue
        for half in (0, 1):
            for piece in _cut(page, theirs.page_size):
                source_start = source.start_of(piece.start, half, heads.start)
                target_start = target.start_of(piece.start, half, heads.start)
                if whole_rows:
                    moves.add(source_start, target_start, len(piece) * width)
                    continue
                for row in range(len(piece)):
                    moves.add(source_start + row * ours.token_bytes, target_start + row * theirs.token_bytes, width)
    return moves.done()


class _Joined:
    """Moves in their order; neighbours that lie in one piece on both sides become one."""

    def __init__(self) -> None:
        self._done: list[Move] = []
        self._source_start = self._target_start = self._num_bytes = 0

    def add(self, source_start: int, target_start: int, num_bytes: int) -> None:
        source_end, target_end = self._source_start + self._num_bytes, self._target_start + self._num_bytes
        if self._num_bytes and (source_start, target_start) == (source_end, target_end):
            self._num_bytes += num_bytes
            return
        self._flush()
        self._source_start, self._target_start, self._num_bytes = source_start, target_start, num_bytes

    def done(self) -> list[Move]:
        self._flush()
        self._num_bytes = 0
        return self._done

    def _flush(self) -> None:
        if self._num_bytes:
            self._done.append(Move(self._source_start, self._target_start, self._num_bytes))


def _cut(tokens: range, page_size: int) -> Iterator[range]:
    """`tokens` where pages of `page_size` begin."""
    start = tokens.start
    while start < tokens.stop:
        end = min(tokens.stop, start - start % page_size + page_size)
        yield range(start, end)
        start = end
