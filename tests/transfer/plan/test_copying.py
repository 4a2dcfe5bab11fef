"""Copies of runs, long and short, against one byte after another."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import LayerLayout
from tests.transfer.plan.moves import Move, listed
from transfer.plan import Copy, Extents, Moves, Shard, moves_of, whole_pages

LAYOUT = LayerLayout(num_kv_heads=2, head_dim=2, page_size=4, dtype="float16")  # 64 bytes a page
NUM_PAGES = 9


def plan(*moves: Move) -> Moves:
    columns = zip(*moves, strict=True)
    return Moves(*(np.array(column, np.int64) for column in columns))


def memory(seed: int) -> memoryview:
    return memoryview(bytearray(np.random.default_rng(seed).bytes(NUM_PAGES * LAYOUT.page_bytes)))


def payload_of(starts_and_sizes: list[tuple[int, int]], window: memoryview) -> bytes:
    return b"".join(window[start : start + size] for start, size in starts_and_sizes)


@st.composite
def page_moves(draw: st.DrawFn) -> Moves:
    num_tokens = draw(st.integers(1, 30))
    shards = []
    for page_size in draw(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))):
        layout = replace(LAYOUT, page_size=page_size)
        count, capacity = layout.num_pages(num_tokens), NUM_PAGES * LAYOUT.page_size // page_size
        shards.append(Shard(layout, draw(st.permutations(range(capacity)))[:count]))
    return moves_of(shards[0], shards[1], range(2), range(num_tokens))


@pytest.mark.parametrize("long_bytes,piece_bytes", [(1, 1 << 20), (1, 24), (1 << 20, 1 << 20), (1 << 20, 40)])
def test_every_byte_goes_where_its_move_says(
    long_bytes: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transfer.plan.LONG_BYTES", long_bytes)
    monkeypatch.setattr("transfer.plan.PIECE_BYTES", piece_bytes)

    @given(page_moves())
    def check(moves: Moves) -> None:
        source, target, expected = memory(1), memory(2), memory(2)
        for move in listed(moves):
            run = source[move.source_start : move.source_start + move.num_bytes]
            expected[move.target_start : move.target_start + move.num_bytes] = run
        copy = Copy(moves, LAYOUT.page_bytes, LAYOUT.page_bytes)
        seen = b"".join(bytes(piece) for piece in copy.pieces(source, target))
        assert target == expected
        assert seen == payload_of([(move.source_start, move.num_bytes) for move in listed(moves)], source)
        assert b"".join(bytes(piece) for piece in copy.targets.read(target)) == seen
        again = memory(2)
        copy.run(source, again)
        assert again == expected

    check()


@given(st.permutations(range(NUM_PAGES)), st.integers(1, NUM_PAGES))
def test_whole_pages_are_gathered_in_their_order(pages: list[int], count: int) -> None:
    window = memory(1)
    runs = whole_pages(pages[:count], LAYOUT.page_bytes)
    expected = payload_of([(page * LAYOUT.page_bytes, LAYOUT.page_bytes) for page in pages[:count]], window)
    into = memoryview(bytearray(runs.num_bytes))
    assert b"".join(bytes(piece) for piece in runs.gather(window, into)) == expected == into
    assert b"".join(runs.views(window)) == expected
    assert sorted(runs.pages.tolist()) == sorted(pages[:count])


def test_runs_touch_every_page_that_they_reach_into() -> None:
    assert Extents(np.array([70, 300]), np.array([130, 4]), page_bytes=64).pages.tolist() == [1, 2, 3, 4]


def test_what_was_not_asked_for_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer.plan.PIECE_BYTES", 8)
    source, target = memory(1), memory(2)
    pieces = Copy(plan(Move(0, 64, 8), Move(16, 128, 8)), 64, 64).pieces(source, target)
    assert bytes(next(pieces)) == source[:8]
    assert target[128:136] == memory(2)[128:136]


def test_rows_may_be_single_bytes() -> None:
    source, target = memory(1), memory(2)
    assert [bytes(piece) for piece in Copy(plan(Move(3, 7, 5), Move(11, 1, 2)), 64, 64).pieces(source, target)] == [
        bytes(source[3:8]) + bytes(source[11:13])
    ]
    assert (target[7:12], target[1:3]) == (source[3:8], source[11:13])


def test_a_payload_of_one_piece_goes_to_its_rows_without_a_stop() -> None:
    moves = plan(Move(0, 64, 8), Move(8, 192, 8), Move(16, 16, 4))
    source, target, expected = memory(1), memory(2), memory(2)
    copy = Copy(moves, 64, 64)
    assert copy.sources.are_one and not copy.targets.are_one
    expected[64:72], expected[192:200], expected[16:20] = source[:8], source[8:16], source[16:20]
    copy.run(source, target)
    assert target == expected
