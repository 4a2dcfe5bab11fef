import pytest

from tests.doubles.held_pool import HeldPool


def test_work_waits_for_the_test_and_is_done_in_order() -> None:
    pool, done = HeldPool(), list[int]()
    futures = [pool.submit(done.append, number) for number in range(2)]
    assert not done and not any(future.done() for future in futures)
    pool.let_go()
    assert done == [0] and [future.done() for future in futures] == [True, False]


def test_what_the_work_raises_is_in_its_future() -> None:
    pool = HeldPool()
    future = pool.submit(int, "no number")
    pool.let_go()
    with pytest.raises(ValueError, match="no number"):
        future.result()
