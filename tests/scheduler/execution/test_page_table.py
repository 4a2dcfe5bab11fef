import pytest
import torch

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


def test_pages_are_added_for_the_present_owner_only() -> None:
    table = PageTable(3, 4, CPU)
    for generation in (1, 2):
        table.write(Grant(1, generation, 0, (4 + generation,)))
    for generation in (1, 3):
        with pytest.raises(AssertionError, match="row 1 grows for an earlier owner"):
            table.write(Grant(1, generation, 1, (9,)))
    with pytest.raises(AssertionError, match="row 2 grows for an earlier owner"):
        table.write(Grant(2, 1, 1, (9,)))  # nobody has it
    assert tables(table) == [[[0, 0, 0, 0], [6, 0, 0, 0], [0, 0, 0, 0]]] * 2 and table.num_growths == 0


def test_an_owner_is_the_generation_of_its_row_above_32_bits() -> None:
    draws = [draw(4, generation=3), draw(2, generation=1)]
    assert torch.equal(owners_of(draws, CPU), torch.tensor([3 << 32, 1 << 32]))
    assert owners_of((), CPU).shape == (0,)
