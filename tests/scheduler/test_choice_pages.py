import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import pages_for_choices
from scheduler.kv_pages import PageAllocator, PageState, allocate_choices, partial_page_copies
from tests.doubles.page_ledger import check_pages

SIZES = (st.integers(1, 60), st.integers(0, 40), st.integers(1, 5), st.sampled_from([1, 2, 7, 16]))


@given(*SIZES)
def test_choices_share_the_full_prompt_pages_and_nothing_else(prompt: int, outputs: int, n: int, size: int) -> None:
    total = prompt + outputs
    needed = pages_for_choices(prompt, total, n, size)
    pool = PageAllocator(needed + 1)
    choices = allocate_choices(pool, (), prompt, total, n, size, PageState.RESERVED)
    assert choices is not None and len(choices) == n
    shared = prompt // size
    assert all(len(pages) == len(set(pages)) == -(-total // size) for pages in choices)
    assert all(pages[:shared] == choices[0][:shared] for pages in choices)
    own = [page for pages in choices for page in pages[shared:]]
    assert len(own) == len(set(own)) and not set(own) & set(choices[0][:shared])
    # Shared pages are counted once, and the pool is exactly used up.
    assert (pool.counts().reserved, pool.counts().free) == (needed, 0)

    for index, pages in enumerate(choices):
        pool.retire(pages)
        left = sum(map(len, choices[index + 1 :])) - shared * max(0, n - index - 2)
        assert pool.counts().quarantined == needed - left


@given(*SIZES)
def test_too_few_pages_change_nothing(prompt: int, outputs: int, n: int, size: int) -> None:
    needed = pages_for_choices(prompt, prompt + outputs, n, size)
    if needed < 2:
        return
    pool = PageAllocator(needed)
    assert allocate_choices(pool, (), prompt, prompt + outputs, n, size, PageState.OWNED) is None
    assert pool.counts().free == needed - 1
    check_pages(pool)


@given(*SIZES)
def test_each_other_choice_gets_its_copy_of_the_partial_page(prompt: int, outputs: int, n: int, size: int) -> None:
    pool = PageAllocator(1000)
    choices = allocate_choices(pool, (), prompt, prompt + outputs, n, size, PageState.OWNED) or []
    sources, targets = partial_page_copies(choices[0], choices[1:], prompt, size)
    if prompt % size == 0:
        assert (sources, targets) == ([], [])
        return
    partial = prompt // size
    assert sources == [choices[0][partial]] * (n - 1)
    assert targets == [pages[partial] for pages in choices[1:]]
    assert not set(sources) & set(targets) and len(set(targets)) == n - 1


@pytest.mark.parametrize(
    "prompt,tokens,n,size,expected",
    [(16, 16, 1, 16, 1), (16, 17, 3, 16, 4), (17, 20, 3, 16, 4), (5, 12, 2, 1, 19), (8, 0, 4, 4, 0)],
)
def test_examples(prompt: int, tokens: int, n: int, size: int, expected: int) -> None:
    assert pages_for_choices(prompt, tokens, n, size) == expected
