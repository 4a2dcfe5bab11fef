from hypothesis import given
from hypothesis import strategies as st

from scheduler.planning.chunks import plan_chunks

REMAINING = st.lists(st.integers(1, 50), max_size=6)


@given(REMAINING, st.integers(0, 60))
def test_chunk_size_zero_takes_one_whole_prompt(remaining: list[int], taken: int) -> None:
    assert plan_chunks(remaining, 0, taken) == (remaining[:1] + [0] * (len(remaining) - 1) if remaining else [])


@given(REMAINING, st.integers(0, 40))
def test_every_prompt_is_computed_in_the_end(remaining: list[int], chunk: int) -> None:
    left, launches = list(remaining), 0
    while left:
        sizes = plan_chunks(left, chunk)
        left = [rest - size for rest, size in zip(left, sizes, strict=True) if rest > size]
        launches += 1
    assert launches == (len(remaining) if chunk == 0 else -(-sum(remaining) // chunk))


@given(REMAINING, st.integers(0, 40), st.integers(1, 90), st.integers(0, 60))
def test_a_launch_has_a_budget_beside_the_chunk_of_one_prompt(
    remaining: list[int], chunk: int, most: int, taken: int
) -> None:
    sizes = plan_chunks(remaining, chunk, taken, most)
    assert len(sizes) == len(remaining)
    assert all(0 <= size <= left for size, left in zip(sizes, remaining, strict=True))
    assert not remaining or sizes[0] >= 1
    assert [size > 0 for size in sizes] == sorted((size > 0 for size in sizes), reverse=True), "nobody passes another"
    budget = max(most - taken, 1)
    if chunk:
        assert all(size <= chunk for size in sizes) and sum(sizes) == min(budget, sum(min(chunk, r) for r in remaining))
    else:
        assert all(size in (0, left) for size, left in zip(sizes, remaining, strict=True)), "prompts stay whole"
        assert sum(sizes) <= max(budget, *remaining[:1], 0)
        after = remaining[sum(size > 0 for size in sizes) :]
        assert not after or sum(sizes) + after[0] > budget, "the next one does not fit"


@given(REMAINING, st.integers(0, 40), st.integers(1, 90) | st.none(), st.integers(0, 60), st.integers(2, 4))
def test_the_last_chunk_of_a_prompt_is_large_enough_for_a_draft(
    remaining: list[int], chunk: int, most: int | None, taken: int, last: int
) -> None:
    left = [size for size in remaining if size >= last]
    while left:
        sizes = plan_chunks(left, chunk, taken, most, last)
        assert sizes[0] >= 1 and (not chunk or max(sizes) <= max(chunk, last))
        assert not chunk or sum(sizes) <= max((most or chunk) - taken, last)
        left = [rest - size for rest, size in zip(left, sizes, strict=True)]
        assert all(rest == 0 or rest >= last for rest in left)
        left = [rest for rest in left if rest]
