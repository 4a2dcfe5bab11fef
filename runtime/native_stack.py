"""Threads whose stacks are deep enough for native code that follows a client's grammar by recursion.

A grammar of protocol.grammar.MAX_GRAMMAR_CHARS characters needs 96 MiB at most: some 3 KB for each rule that names the
next one. A thread's usual stack has 8 MiB, in some containers 2. Only what is used of a stack takes memory.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

STACK_BYTES: Final = 256 << 20
T = TypeVar("T")


def with_stack(start: Callable[[], T]) -> T:
    """Calls `start`. The threads that it starts have STACK_BYTES of stack."""
    before = threading.stack_size(STACK_BYTES)
    try:
        return start()
    finally:
        threading.stack_size(before)


def pool_with_stack(num_threads: int, name: str, initializer: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """A pool whose threads, which run already, have STACK_BYTES of stack."""
    pool = ThreadPoolExecutor(num_threads, name, initializer)
    all_run = threading.Barrier(num_threads + 1)

    def start() -> None:
        for _ in range(num_threads):
            pool.submit(all_run.wait)

    with_stack(start)
    all_run.wait()
    return pool
