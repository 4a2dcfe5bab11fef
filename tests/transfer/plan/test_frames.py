from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import KvLayout
from protocol.messages_gateway import RankEndpoint, WorkerAddress
from tests.transfer.memory import TWO_GROUPS
from transfer.plan import final_pages, frames_of, start_alignment, start_fault
from transfer.sending.transfer import Destination, SendTransfer

TARGET = Destination(WorkerAddress("d0", 1, ranks=(RankEndpoint("nowhere"),)), reservation=1, attempt=0)


def layout_of(page_size: int, num_layers: int = 2) -> KvLayout:
    return KvLayout.uniform(num_layers=num_layers, num_kv_heads=1, head_dim=2, page_size=page_size, dtype="float16")


@given(st.sampled_from([1, 2, 3, 16]), st.integers(0, 70), st.lists(st.integers(0, 70), max_size=6))
def test_every_page_of_every_layer_leaves_once_however_the_prompt_is_cut(
    page_size: int, n: int, cuts: list[int]
) -> None:
    layout = layout_of(page_size)
    transfer = SendTransfer(TARGET, layout, range(layout.num_pages(n)), n)
    left: Counter[tuple[int, int]] = Counter()
    tokens: Counter[int] = Counter()
    for final in [*(min(cut, n) for cut in cuts), n]:  # also going backwards, which changes nothing
        for layer in range(layout.num_layers):
            for frame in transfer.layer_ready(layer, final):
                for page in range(frame.page_start, frame.page_start + frame.num_pages):
                    left[layer, page] += 1
                    assert (page + 1) * page_size <= final or final == n
                assert 0 < frame.num_tokens <= frame.num_pages * page_size
                tokens[layer] += frame.num_tokens
    assert left == Counter({(layer, page): 1 for layer in range(2) for page in range(layout.num_pages(n))})
    assert tokens == Counter({layer: n for layer in range(2) if n})


@given(st.integers(0, 70), st.integers(0, 70), st.sampled_from([1, 2, 3, 16]), st.sampled_from([1, 4, 6, 16]))
def test_a_transfer_starts_at_the_last_page_that_begins_on_both_sides_and_sends_the_rest(
    wished: int, n: int, ours: int, theirs: int
) -> None:
    start = min(wished, n) // start_alignment(ours, theirs) * start_alignment(ours, theirs)
    fits = [token for token in range(n + 1) if token % ours == 0 == token % theirs]
    assert start == max(token for token in fits if token <= wished)
    assert fits == [token for token in range(80) if start_fault(token, n, ours, theirs) is None]

    layout = layout_of(ours)
    transfer = SendTransfer(replace(TARGET, start=start), layout, range(layout.num_pages(n)), n)
    frames = [frame for final in (n // 2, n) for frame in transfer.layer_ready(0, final)]
    pages = [page for frame in frames for page in range(frame.page_start, frame.page_start + frame.num_pages)]
    assert pages == list(range(start // ours, layout.num_pages(n)))
    assert sum(frame.num_tokens for frame in frames) == n - start


@given(st.sampled_from([1, 4]), st.integers(1, 40), st.integers(1, 200))
def test_frames_keep_to_the_limit_and_still_move(page_size: int, n: int, max_bytes: int) -> None:
    layout = layout_of(page_size)
    frames = list(frames_of(layout, 1, 0, layout.num_pages(n), n, max_bytes))
    assert all(frame.num_pages == 1 or frame.num_pages * layout.layer(0).page_bytes <= max_bytes for frame in frames)
    for one, two in pairwise(frames):
        assert one.page_start + one.num_pages == two.page_start
        assert (one.num_pages + two.num_pages) * layout.layer(0).page_bytes > max_bytes or two is frames[-1]


def test_each_layer_is_cut_by_the_size_of_its_own_pages() -> None:
    page_bytes = [TWO_GROUPS.layer(layer).page_bytes for layer in range(3)]
    assert page_bytes == [8192, 8192, 2048]
    for layer, counts in enumerate([[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [4, 1]]):
        frames = list(frames_of(TWO_GROUPS, layer, 0, 5, 19, 8192))
        assert [frame.num_pages for frame in frames] == counts
        transfer = SendTransfer(TARGET, TWO_GROUPS, range(5), 19)
        assert [transfer.payload_bytes(one) for one in frames] == [count * page_bytes[layer] for count in counts]


def test_a_partial_page_waits_for_the_end() -> None:
    layout = layout_of(4)
    assert [final_pages(layout, final, 10) for final in (0, 3, 4, 7, 8, 9, 10)] == [0, 0, 1, 1, 2, 2, 3]
    assert [layout.tokens_in(10, start, count) for start, count in [(0, 3), (2, 1), (1, 2), (0, 1)]] == [10, 2, 6, 4]
