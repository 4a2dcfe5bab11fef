from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scheduler.execution.future_rows import owners_of
from scheduler.execution.page_table import PageTable
from scheduler.plan import Grant
from tests.scheduler.building import CPU, draw


def tables(table: PageTable) -> list[list[list[int]]]:
    """On the device and on the host."""
    return [table.req_to_page.tolist(), table.req_to_page_cpu.tolist()]


def test_a_row_names_its_pages_on_the_device_and_on_the_host() -> None:
    table = PageTable(3, 4, CPU)
    table.write(Grant(2, 1, 0, (7, 8)))
    table.write(Grant(1, 1, 0, (5,)))
    assert tables(table) == [[[0, 0, 0, 0], [5, 0, 0, 0], [7, 8, 0, 0]]] * 2
    assert table.num_growths == 0


def test_added_pages_come_behind_those_of_the_row() -> None:
    table = PageTable(3, 4, CPU)
    table.write(Grant(1, 1, 0, (5,)))
    table.write(Grant(1, 1, 1, (9, 3)))
    assert tables(table) == [[[0, 0, 0, 0], [5, 9, 3, 0], [0, 0, 0, 0]]] * 2
    assert table.num_growths == 1
    table.write(Grant(1, 1, 3, (2,)))
    assert tables(table)[0][1] == [5, 9, 3, 2] and table.num_growths == 2


class Scatters(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations that write memory."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.scattered: list[int] = []  # the values of the last scatter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.index_put_, torch.ops.aten.copy_):
            self.writes.append(func.overloadpacket.__name__)
        if func.overloadpacket is torch.ops.aten.index_put_:
            self.scattered = args[2].tolist()
        return func(*args, **(kwargs or {}))


def test_all_grants_of_a_plan_are_one_write_on_the_device() -> None:
    """With pages of one token, each of 256 requests grows by a page in every step."""
    table = PageTable(5, 4, CPU)
    with Scatters() as seen:
        table.write(Grant(2, 1, 0, (7, 8)), Grant(1, 1, 0, (5,)), Grant(3, 1, 0, ()), Grant(2, 1, 2, (4,)))
    assert seen.writes == ["index_put_"]
    assert tables(table) == [[[0, 0, 0, 0], [5, 0, 0, 0], [7, 8, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0]]] * 2
    with Scatters() as seen:
        table.write()
        table.write(Grant(4, 1, 0, ()))
    assert seen.writes == [] and table.num_growths == 1


def test_a_cell_that_two_grants_of_a_plan_name_gets_the_later_page_both_times() -> None:
    """Which of two writes of one cell is the last is open on a GPU."""
    table = PageTable(3, 4, CPU)
    with Scatters() as seen:
        table.write(Grant(1, 1, 0, (5, 6)), Grant(1, 2, 0, (8, 9, 7)))
    assert tables(table) == [[[0, 0, 0, 0], [8, 9, 7, 0], [0, 0, 0, 0]]] * 2
    assert seen.scattered == [8, 9, 8, 9, 7]


@pytest.mark.gpu
def test_a_table_on_a_device_is_that_of_the_host() -> None:
    """Grants overwrite each other within a plan, and the host's numbers change right after each write."""
    table = PageTable(65, 64, torch.device("cuda"))
    for owner_number in range(1, 30):
        table.write(
            *(Grant(row, owner_number, 0, tuple(range(owner_number, owner_number + 40))) for row in range(1, 65))
        )
        table.write(*(Grant(row, owner_number, 40 + at, (row + at,)) for row in range(1, 65) for at in range(3)))
        table.write(Grant(1, owner_number, 0, (5,)), Grant(1, owner_number, 0, (owner_number,)))
    assert table.req_to_page.tolist() == table.req_to_page_cpu.tolist()


def test_pages_are_added_for_the_present_owner_only() -> None:
    table = PageTable(3, 4, CPU)
    for owner_number in (1, 2):
        table.write(Grant(1, owner_number, 0, (4 + owner_number,)))
    for owner_number in (1, 3):
        with pytest.raises(AssertionError, match="row 1 grows for an earlier owner"):
            table.write(Grant(1, owner_number, 1, (9,)))
    with pytest.raises(AssertionError, match="row 2 grows for an earlier owner"):
        table.write(Grant(2, 1, 1, (9,)))  # nobody has it
    assert tables(table) == [[[0, 0, 0, 0], [6, 0, 0, 0], [0, 0, 0, 0]]] * 2 and table.num_growths == 0


def test_an_owner_is_the_owner_number_of_its_row_above_32_bits() -> None:
    draws = [draw(4, owner_number=3), draw(2, owner_number=1)]
    assert torch.equal(owners_of(draws, CPU), torch.tensor([3 << 32, 1 << 32]))
    assert owners_of((), CPU).shape == (0,)
