"""Pages of the n choices of one prompt.

    choice 0   [full prompt pages][partial page][output pages]
    choice c   [same, shared     ][a copy of it ][own output pages]

Choices share the full prompt pages. Each has its own later pages.
"""

from collections.abc import Sequence

from protocol.kv_layout import full_pages, pages_for, pages_for_choices
from scheduler.page_allocator import PageAllocator, PageState


def allocate_choices(
    pages: PageAllocator, prompt_len: int, num_tokens: int, num_choices: int, page_size: int, state: PageState
) -> list[list[int]] | None:
    """Each choice's pages in order, or None when too few are free. A choice holds one reference to each page."""
    total = pages_for(num_tokens, page_size)
    shared = min(full_pages(prompt_len, page_size), total)
    fresh = pages.allocate(pages_for_choices(prompt_len, num_tokens, num_choices, page_size), state)
    if fresh is None:
        return None

    first, rest = fresh[:total], fresh[total:]
    choices = [first]
    for choice in range(num_choices - 1):
        pages.share(first[:shared])
        own = total - shared
        choices.append(first[:shared] + rest[choice * own : (choice + 1) * own])
    return choices


def partial_page_copies(
    first: Sequence[int], others: Sequence[Sequence[int]], prompt_len: int, page_size: int
) -> tuple[list[int], list[int]]:
    """(sources, targets): the page copies that give each of `others` its own partial prompt page."""
    index = full_pages(prompt_len, page_size)
    if index == pages_for(prompt_len, page_size):
        return [], []
    return [first[index]] * len(others), [pages[index] for pages in others]
