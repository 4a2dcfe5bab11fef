from collections.abc import Sequence

import pytest

from scheduler.retire_queue import RetireQueue


class Pools:
    """Notes what became reusable."""

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.rows: list[int] = []
        self.queue = RetireQueue(self._pages, self._rows)

    def _pages(self, pages: Sequence[int]) -> None:
        self.pages += pages

    def _rows(self, rows: Sequence[int]) -> None:
        self.rows += rows


def test_nothing_is_reused_before_its_ticket() -> None:
    pools = Pools()
    pools.queue.retire([1, 2], [3], after_ticket=5)
    pools.queue.retire([4], [], after_ticket=6)
    assert not pools.queue.collect(4)
    assert (pools.pages, pools.rows, len(pools.queue)) == ([], [], 2)
    assert pools.queue.collect(5)
    assert (pools.pages, pools.rows, len(pools.queue)) == ([1, 2], [3], 1)
    pools.queue.collect(6)
    assert (pools.pages, pools.rows, len(pools.queue)) == ([1, 2, 4], [3], 0)


def test_a_reader_holds_back_its_own_entry_only() -> None:
    pools = Pools()
    reading = [True]
    pools.queue.retire([1], [1], 1, lambda: reading[0])
    pools.queue.retire([2], [2], 1)
    pools.queue.collect(1)
    assert (pools.pages, pools.rows) == ([2], [2])
    reading[0] = False
    pools.queue.collect(1)
    assert (pools.pages, pools.rows) == ([2, 1], [2, 1])


@pytest.mark.parametrize("ticket_done", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_both_conditions_are_needed(ticket_done: bool, is_read: bool) -> None:
    pools = Pools()
    pools.queue.retire([1], [], 7, lambda: is_read)
    pools.queue.collect(7 if ticket_done else 6)
    assert pools.pages == ([1] if ticket_done and not is_read else [])


def test_an_empty_entry_is_no_entry() -> None:
    pools = Pools()
    pools.queue.retire([], [], 1)
    assert len(pools.queue) == 0
    pools.queue.collect(9)
    assert (pools.pages, pools.rows) == ([], [])


def test_once_is_once() -> None:
    pools = Pools()
    pools.queue.retire([1], [], 1)
    pools.queue.collect(1)
    pools.queue.collect(2)
    assert pools.pages == [1]
