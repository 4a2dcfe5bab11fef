"""Both ways to launch copies give the same bytes and sums; on a CPU here, on a GPU in test_cuda_ipc.py."""

from random import Random

import numpy as np
import pytest
import torch

from bench.transfer.launches import WAYS, HostQueue, Ways
from protocol.kv_layout import KvLayout
from transfer.in_place.device_pools import LayerWords, Moving, Tiles, tiles_to_write
from transfer.plan import Copy, Extents, Shard, moves_of

EMPTY = Extents(np.zeros(0, np.int64), np.zeros(0, np.int64), 1)


def random_layout(rng: Random) -> KvLayout:
    heads, dim = rng.choice([1, 2, 3]), rng.choice([4, 8, 12])
    return KvLayout.uniform(rng.choice([1, 2, 5]), heads, dim, rng.choice([1, 4, 16]), "bfloat16")


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_write_the_same(seed: int) -> None:
    rng = Random(seed)
    layout, num_tokens = random_layout(rng), rng.randint(1, 60)
    num_pages = layout.num_pages(num_tokens) + 3
    torch.manual_seed(seed)
    source_B = torch.randint(0, 256, (layout.pool_bytes(num_pages),), dtype=torch.uint8)
    target_B = torch.zeros_like(source_B)
    sources, targets = (LayerWords(side_B, layout, num_pages) for side_B in (source_B, target_B))
    pages = [rng.sample(range(1, num_pages), layout.num_pages(num_tokens)) for _ in range(2)]
    queue, layer = HostQueue(), layout.layer(0)

    def plan() -> Copy:
        shards = Shard(layer, pages[0]), Shard(layer, pages[1])
        moves = moves_of(*shards, range(layer.num_kv_heads), range(num_tokens))
        return Copy(moves, layer.page_bytes, layer.page_bytes)

    def begin(layers: range, copy: Copy) -> Moving:
        return queue.begin(sources.of(layers), targets.of(layers), tiles_to_write(copy, layer, layer))

    ways = Ways(queue, begin, plan, layout.num_layers)
    expected, totals = target_B.clone(), list(ways.totals)
    assert expected.any() and len(totals) == layout.num_layers
    for way in WAYS:
        target_B.zero_()
        times = ways.timed(way)
        assert torch.equal(target_B, expected)
        assert ways.sums() == totals and min(times.wall, times.host, times.device) > 0


def test_bytes_that_have_changed_are_noticed() -> None:
    words_LW = torch.arange(8).view(1, 8)
    queue, tiles = HostQueue(), Tiles(4, np.arange(2), np.arange(2))
    ways = Ways(queue, lambda _, __: queue.begin(words_LW, None, tiles), lambda: EMPTY, 1)
    words_LW[0, 3] = 9
    with pytest.raises(AssertionError, match="the sums of the same bytes differ"):
        ways.timed(WAYS[0])
