"""Books of KV memory for tests of planning/."""

from scheduler.planning.kv_book import Holding, KvBook
from scheduler.planning.kv_pages import PageState

PAGE_SIZE = 4
RESERVED, OWNED = PageState.RESERVED, PageState.OWNED


def make_book(num_pages: int = 20, max_requests: int = 5, caches: bool = False, lookahead: int = 0) -> KvBook:
    sizes = {"max_requests": max_requests, "max_context": 64, "lookahead": lookahead}
    return KvBook(num_pages, PAGE_SIZE, **sizes, caches=caches)


def admitted(book: KvBook, prompt: int, tokens: int, n: int = 1, state: PageState = OWNED) -> tuple[Holding, ...]:
    holdings = book.admit(prompt, tokens, n, state)
    assert holdings is not None
    return holdings
