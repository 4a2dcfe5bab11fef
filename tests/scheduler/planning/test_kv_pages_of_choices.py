import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kv_layout import pages_for_choices
from scheduler.planning.kv_pages import PageAllocator, PageState, allocate_choices, prompt_copies
from tests.doubles.page_ledger import check_pages

SIZES = (
    st.integers(1, 60),
    st.integers(0, 40),
    st.integers(1, 5),
    st.sampled_from([1, 2, 7, 16]),
    st.sampled_from([0, 0, 1, 3]),
)


@given(*SIZES)
def test_choices_share_the_settled_prompt_pages_and_nothing_else(
    prompt: int, outputs: int, n: int, size: int, ahead: int
) -> None:
    total = prompt + outputs
    needed = pages_for_choices(prompt, total, n, size, ahead)
    pool = PageAllocator(needed + 1)
    choices = allocate_choices(pool, (), prompt, total, n, size, ahead, PageState.RESERVED)
    assert choices is not None and len(choices) == n
    shared = max(prompt - ahead, 0) // size
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
def test_too_few_pages_change_nothing(prompt: int, outputs: int, n: int, size: int, ahead: int) -> None:
    needed = pages_for_choices(prompt, prompt + outputs, n, size, ahead)
    if needed < 2:
        return
    pool = PageAllocator(needed)
    assert allocate_choices(pool, (), prompt, prompt + outputs, n, size, ahead, PageState.OWNED) is None
    assert pool.counts().free == needed - 1
    check_pages(pool)


@given(*SIZES)
def test_every_choice_has_the_prompt_after_the_copies(prompt: int, outputs: int, n: int, size: int, ahead: int) -> None:
    pool = PageAllocator(1000)
    first, *others = allocate_choices(pool, (), prompt, prompt + outputs, n, size, ahead, PageState.OWNED) or []
    sources, targets = prompt_copies(first, others, prompt, size, ahead)
    holds = {page: place for place, page in enumerate(first[: -(-prompt // size)])}
    assert not set(targets) & set(first) and len(set(targets)) == len(targets), "nobody's KV is overwritten"
    holds |= {target: holds[source] for source, target in zip(sources, targets, strict=True)}
    for pages in others:
        assert [holds[page] for page in pages[: -(-prompt // size)]] == list(range(-(-prompt // size)))
        own = [page for page in pages if page not in first]
        assert len(set(targets) & set(own)) == -(-prompt // size) - max(prompt - ahead, 0) // size, "no copy is idle"


@pytest.mark.parametrize(
    "prompt,tokens,n,size,ahead,expected",
    [
        (16, 16, 1, 16, 0, 1),
        (16, 17, 3, 16, 0, 4),
        (16, 17, 3, 16, 1, 6),
        (17, 20, 3, 16, 0, 4),
        (17, 20, 3, 16, 1, 4),
        (5, 12, 2, 1, 0, 19),
        (8, 0, 4, 4, 0, 0),
    ],
)
def test_examples(prompt: int, tokens: int, n: int, size: int, ahead: int, expected: int) -> None:
    assert pages_for_choices(prompt, tokens, n, size, ahead) == expected


def test_the_last_slots_of_a_prompt_are_not_shared_even_if_it_ends_with_a_page() -> None:
    """Their KV in a draft's layers depends on the token that each choice draws."""
    one, other = allocate_choices(PageAllocator(9), (), 8, 9, 2, 4, 1, PageState.OWNED) or []
    assert one[0] == other[0] and not set(one[1:]) & set(other[1:])
    assert prompt_copies(one, [other], 8, 4, 1) == ([one[1]], [other[1]])
