"""What is moved within device memory, against moves of bytes, and what the checksum notices."""

import pytest
import torch

from protocol.kv_layout import LayerLayout
from testkit.device_on_host import HostCopies, total_of
from tests.transfer.in_place.device_cases import CASES, Case
from tests.transfer.plan.moves import listed
from transfer.in_place.device_pools import FIRST, SECOND, STEP, WRAP, tiles_to_read, tiles_to_write, word_bytes
from transfer.plan import Copy, Extents, Shard, moves_of

WORDS_N = torch.randint(-(2**63), 2**63 - 1, (256,), generator=torch.Generator().manual_seed(1))


def by_hand(words: list[int]) -> int:
    total = 0
    for index, word in enumerate(words):
        x = ((word & WRAP) ^ (index * STEP & WRAP)) * FIRST & WRAP
        x = (x ^ (x >> 32)) * SECOND & WRAP
        total += x ^ (x >> 29)
    return total & WRAP


def test_the_checksum_by_hand() -> None:
    assert total_of(WORDS_N) == by_hand(WORDS_N.tolist())
    halves_N = WORDS_N.view(torch.int16)
    assert total_of(halves_N) == by_hand(halves_N.tolist())


def test_what_makes_each_addend_a_bijection() -> None:
    assert STEP % 2 and FIRST % 2 and SECOND % 2
    assert max(STEP, FIRST, SECOND) < 2**63


@pytest.mark.parametrize("bit", [*range(0, 62, 7), 62, -1])
def test_one_bit_changes_it_wherever_it_is(bit: int) -> None:
    flip = -(2**63) if bit < 0 else 1 << bit
    for index in (0, 1, 100, 255):
        changed_N = WORDS_N.clone()
        changed_N[index] ^= flip
        assert total_of(changed_N) != total_of(WORDS_N)


@pytest.mark.parametrize("distance", [1, 16, 128])
def test_words_that_change_places_change_it_even_if_they_differ_in_their_highest_bits_only(distance: int) -> None:
    words_N = torch.zeros(256, dtype=torch.int64)
    words_N[:distance] = 1 << 62
    assert total_of(words_N) != total_of(words_N.roll(distance))
    assert total_of(words_N) != total_of(words_N.roll(1))


def test_zeros_at_the_end_count() -> None:
    assert total_of(torch.zeros(8, dtype=torch.int64)) != total_of(torch.zeros(9, dtype=torch.int64))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_units_move_what_moves_move(case: Case) -> None:
    source_LB, want_LB = (case.memory(side).view(torch.uint8) for side in (0, 1))
    shards = [Shard(case.layout(side), case.pages(side)) for side in (0, 1)]
    moved = []
    for move in listed(moves_of(shards[0], shards[1], range(case.heads), range(case.num_tokens))):
        run = source_LB[:, move.source_start : move.source_start + move.num_bytes]
        want_LB[:, move.target_start : move.target_start + move.num_bytes] = run
        moved.append(run)
    words, totals = case.moved_on_cpu()
    kind = case.memory(1).dtype
    assert words == want_LB.view(kind).flatten().tolist()
    assert totals == tuple(total_of(rows.view(kind)) for rows in torch.cat(moved, 1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_who_reads_what_was_written_finds_the_same_sum(case: Case) -> None:
    """Decode cuts the same frame by its own pages, which may be others: the words come in the same order."""
    target = case.memory(1)
    sent = HostCopies().begin(case.memory(0), target, case.tiles())
    payload = Shard(case.layout(0), range(case.layout(0).num_pages(case.num_tokens)))
    landing = moves_of(payload, Shard(case.layout(1), case.pages(1)), range(case.heads), range(case.num_tokens))
    read = HostCopies().begin(
        target,
        None,
        tiles_to_read(Extents(landing.target_starts_M, landing.sizes_M, case.layout(1).page_bytes), case.layout(1)),
    )
    assert read.totals == sent.totals


def test_whole_pages_move_as_pages() -> None:
    layout = LayerLayout(8, 128, 16, "bfloat16")
    source, target = Shard(layout, [3, 4, 9]), Shard(layout, [5, 6, 7])
    tiles = tiles_to_write(
        Copy(moves_of(source, target, range(8), range(48)), layout.page_bytes, layout.page_bytes), layout, layout
    )
    assert tiles.num_words == layout.page_bytes // 8
    assert (tiles.sources_U.tolist(), tiles.targets_U.tolist()) == ([3, 4, 9], [5, 6, 7])


@pytest.mark.parametrize("head_dim, dtype, size", [(128, "bfloat16", 8), (2, "bfloat16", 4), (5, "float16", 2)])
def test_words_are_as_wide_as_every_head_allows(head_dim: int, dtype: str, size: int) -> None:
    assert word_bytes(LayerLayout(3, head_dim, 4, dtype)) == size
