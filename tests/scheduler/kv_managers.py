"""KV managers for tests of planning/."""

from scheduler.planning.kv_manager import Holding, KvManager
from scheduler.planning.kv_pages import PageState

PAGE_SIZE = 4
RESERVED, OWNED = PageState.RESERVED, PageState.OWNED


def make_kv_manager(num_pages: int = 20, max_requests: int = 5, caches: bool = False, lookahead: int = 0) -> KvManager:
    sizes = {"max_requests": max_requests, "max_context": 64, "lookahead": lookahead}
    return KvManager(num_pages, PAGE_SIZE, **sizes, caches=caches)


def admitted(
    kv_manager: KvManager, prompt: int, tokens: int, n: int = 1, state: PageState = OWNED
) -> tuple[Holding, ...]:
    holdings = kv_manager.admit(prompt, tokens, n, state)
    assert holdings is not None
    return holdings
