"""The copy that a process makes into the device memory of another: both ends of the test know it."""

from protocol.kv_layout import KvLayout
from transfer.plan import Copy, Shard, moves_of

LAYOUT = KvLayout.uniform(num_layers=3, num_kv_heads=2, head_dim=64, page_size=16, dtype="bfloat16")
PAGES_THERE, PAGES_HERE, NUM_TOKENS = [5, 2, 9], [4, 1, 7], 41


def copy_of(source: list[int], target: list[int]) -> Copy:
    """The prompt's tokens, from pages to pages."""
    layer = LAYOUT.layer(0)
    moves = moves_of(Shard(layer, source), Shard(layer, target), range(layer.num_kv_heads), range(NUM_TOKENS))
    return Copy(moves, layer.page_bytes, layer.page_bytes)
