import torch

from scheduler.kv_book import Holding
from scheduler.page_table import PageTable, owners_of
from tests.scheduler.building import CPU, make_req


def tables(table: PageTable) -> list[list[list[int]]]:
    """On the device and on the host."""
    return [table.req_to_page.tolist(), table.req_to_page_cpu.tolist()]


def test_a_row_names_its_pages_on_the_device_and_on_the_host() -> None:
    table = PageTable(3, 4, CPU)
    table.write(2, [7, 8])
    table.write(1, [5])
    assert tables(table) == [[[0, 0, 0, 0], [5, 0, 0, 0], [7, 8, 0, 0]]] * 2
    assert table.num_growths == 0


def test_added_pages_come_behind_those_of_the_row() -> None:
    table = PageTable(3, 4, CPU)
    table.write(1, [5])
    table.grow(1, [9, 3], 1)
    assert tables(table) == [[[0, 0, 0, 0], [5, 9, 3, 0], [0, 0, 0, 0]]] * 2
    assert table.num_growths == 1


def test_an_owner_is_the_generation_of_its_row_above_32_bits() -> None:
    reqs = [make_req(), make_req()]
    reqs[0].holding, reqs[1].holding = Holding(4, 3, []), Holding(2, 1, [])
    assert torch.equal(owners_of(reqs, CPU), torch.tensor([3 << 32, 1 << 32]))
