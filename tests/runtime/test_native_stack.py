import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from runtime.native_stack import STACK_BYTES, pool_with_stack, with_stack


def stack_of(address: int) -> int:
    """The bytes of the mapping around an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, end = line.partition(" ")[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            return int(end, 16) - int(start, 16)
    raise AssertionError("the address is mapped")


def stack_here() -> int:
    """The stack of the calling thread: its thread control block, whose address is its identifier, lies at the top."""
    return stack_of(threading.get_ident())


def test_threads_of_a_pool_have_deep_stacks() -> None:
    pool = pool_with_stack(2, "deep")
    both = threading.Barrier(2)

    def look() -> tuple[str, int]:
        both.wait()
        return threading.current_thread().name, stack_here()

    futures: list[Future[tuple[str, int]]] = [pool.submit(look) for _ in range(2)]
    found = dict(future.result() for future in futures)
    pool.shutdown()
    assert len(found) == 2 and all(name.startswith("deep") for name in found)
    assert all(size >= STACK_BYTES for size in found.values())


def test_other_threads_keep_their_stacks() -> None:
    sizes: list[int] = []
    pool_with_stack(1, "deep").shutdown()
    thread = threading.Thread(target=lambda: sizes.append(stack_here()))
    thread.start()
    thread.join()
    assert sizes[0] < STACK_BYTES and threading.stack_size() == 0


def test_the_size_is_put_back_when_a_start_fails() -> None:
    def fails() -> None:
        raise RuntimeError("no thread")

    with pytest.raises(RuntimeError, match="no thread"):
        with_stack(fails)
    assert threading.stack_size() == 0


def test_each_thread_is_prepared() -> None:
    names: list[str] = []
    pool = pool_with_stack(2, "kind", lambda: names.append(threading.current_thread().name))
    pool.shutdown()
    assert len(set(names)) == 2
