"""Plans of reslicing against a dense reference: the whole KV, cut for each side as numpy cuts it."""

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import LayerLayout
from tests.transfer.plan.moves import Move, listed
from transfer.plan import Shard, moves_of

Bytes = npt.NDArray[np.uint8]
HEAD_DIM = 2  # of float16: 4 bytes a head
UNTOUCHED = 255


@dataclass(frozen=True)
class Side:
    """How one worker cuts the KV of a prompt: a shard for each rank."""

    shards: tuple[Shard, ...]

    def layer_of(self, rank: int) -> Bytes:
        shard = self.shards[rank]
        return np.full((max(shard.pages, default=0) + 2) * shard.layout.page_bytes, UNTOUCHED, np.uint8)

    def filled(self, rank: int, dense_T2HB: Bytes) -> Bytes:
        """The rank's memory with its share of the whole KV in place."""
        shard = self.shards[rank]
        layer, layout = self.layer_of(rank), shard.layout
        pages = layer.reshape(-1, 2, layout.page_size, layout.num_kv_heads, layout.head_bytes)
        for token, value_2HB in enumerate(dense_T2HB):
            index, slot = divmod(token, layout.page_size)
            pages[shard.pages[index], :, slot] = value_2HB[:, shard.first_head : shard.first_head + layout.num_kv_heads]
        return layer


@dataclass(frozen=True)
class Case:
    num_kv_heads: int
    num_tokens: int
    sender: Side
    receiver: Side


@st.composite
def sides(draw: st.DrawFn, num_kv_heads: int, num_tokens: int) -> Side:
    tp_size = draw(st.sampled_from([size for size in (1, 2, 3, 4, 6, 8) if divides(size, num_kv_heads)]))
    page_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    shards = []
    for rank in range(tp_size):
        heads = heads_of_rank(num_kv_heads, tp_size, rank)
        layout = LayerLayout(len(heads), HEAD_DIM, page_size, "float16")
        count = layout.num_pages(num_tokens)
        pages = draw(st.one_of(st.just(list(range(1, count + 1))), st.permutations(range(1, count + 3))))
        shards.append(Shard(layout, pages[:count], heads.start))
    return Side(tuple(shards))


def heads_of_rank(num_kv_heads: int, tp_size: int, rank: int) -> range:
    """The KV heads of a rank. With more ranks than heads, several neighbours hold the same head."""
    first = rank * num_kv_heads // tp_size
    return range(first, first + max(1, num_kv_heads // tp_size))


def divides(one: int, two: int) -> bool:
    return one % two == 0 or two % one == 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    heads = draw(st.sampled_from([1, 2, 4, 6, 8]))
    tokens = draw(st.integers(0, 20))
    return Case(heads, tokens, draw(sides(heads, tokens)), draw(sides(heads, tokens)))


@given(cases(), st.data())
def test_every_receiver_ends_with_exactly_its_share_and_each_byte_comes_once(case: Case, data: st.DataObject) -> None:
    dense = np.arange(case.num_tokens * 2 * case.num_kv_heads * 2 * HEAD_DIM) % 251
    dense_T2HB = dense.astype(np.uint8).reshape(case.num_tokens, 2, case.num_kv_heads, 2 * HEAD_DIM)
    cut = data.draw(st.integers(0, case.num_tokens))  # two chunks: a plan may begin and end within pages
    landed = [case.receiver.layer_of(rank) for rank in range(len(case.receiver.shards))]
    written = [np.zeros(len(memory), int) for memory in landed]
    for sender, receiver in product(range(len(case.sender.shards)), range(len(case.receiver.shards))):
        has = heads_of_rank(case.num_kv_heads, len(case.sender.shards), sender)
        wants = heads_of_rank(case.num_kv_heads, len(case.receiver.shards), receiver)
        heads = range(max(has.start, wants.start), min(has.stop, wants.stop))
        if not heads or sender % max(1, len(case.sender.shards) // case.num_kv_heads):
            continue  # another rank sends these heads, also where several hold a copy
        source = case.sender.filled(sender, dense_T2HB)
        for tokens in (range(cut), range(cut, case.num_tokens)):
            moves = listed(moves_of(case.sender.shards[sender], case.receiver.shards[receiver], heads, tokens))
            assert sum(move.num_bytes for move in moves) == len(tokens) * 2 * len(heads) * 2 * HEAD_DIM
            assert not any(joins(one, two) for one, two in pairwise(moves))
            for move in moves:
                come = slice(move.source_start, move.source_start + move.num_bytes)
                go = slice(move.target_start, move.target_start + move.num_bytes)
                landed[receiver][go] = source[come]
                written[receiver][go] += 1
    for rank, memory in enumerate(landed):
        assert memory.tolist() == case.receiver.filled(rank, dense_T2HB).tolist()
        assert set(written[rank].tolist()) <= {0, 1}
        assert written[rank].sum() == case.num_tokens * 2 * case.receiver.shards[rank].layout.token_bytes


def joins(one: Move, two: Move) -> bool:
    ends = one.source_start + one.num_bytes, one.target_start + one.num_bytes
    return ends == (two.source_start, two.target_start)
