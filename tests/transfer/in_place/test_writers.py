"""Who may write where, with seats that a test takes and frees."""

from dataclasses import replace

import pytest

from protocol.errors import WireError
from transfer.in_place.writers import PoolOwner, Writers
from transfer.offers import DeviceHandle, PoolOffer

ONE, TWO = 11, 12  # prefill instances


class Table(PoolOwner):
    """Seats."""

    def __init__(self) -> None:
        self.num_seats = 0
        self.taken: set[int] = set()

    def offer(self) -> PoolOffer:
        self.num_seats += 1
        return PoolOffer("here", 1, 3, 10, self.num_seats)

    def is_taken(self, seat: int) -> bool:
        return seat in self.taken


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def writers(table: Table) -> Writers:
    """Two prefill workers that hold seats 1 and 2."""
    made = Writers(table)
    for instance in (ONE, TWO):
        table.taken.add(made.offer(instance).seat)
    return made


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("holds", [True, False])
def test_a_writer_is_admitted_when_it_says_so_and_holds_its_seat(table: Table, says: bool, holds: bool) -> None:
    free, strict = Writers(table), Writers(table, required="shm")
    free_seat, strict_seat = (side.offer(ONE).seat for side in (free, strict))
    table.taken |= {free_seat, strict_seat} if holds else set()
    assert free.admit(ONE, says) == ("shm" if says and holds else "")
    if says and holds:
        assert strict.admit(ONE, says) == "shm"
    else:
        with pytest.raises(WireError, match="transfer_backend is shm"):
            strict.admit(ONE, says)


def test_who_is_lost_is_forgotten_but_not_what_it_may_be_writing(table: Table, writers: Writers) -> None:
    assert writers.admit(ONE, True)
    writers.began(5, ONE)
    writers.lose(ONE)
    assert not writers.admit(ONE, True) and writers.admit(TWO, True)
    assert not writers.is_on_device(ONE) and ONE not in writers._offers
    assert writers.may_be_written(5)
    table.taken.remove(1)
    assert not writers.may_be_written(5)


def test_the_seat_of_an_older_greeting_does_not_count(table: Table, writers: Writers) -> None:
    assert writers.admit(ONE, True)
    writers.offer(ONE)
    assert not writers.admit(ONE, True)


def test_only_the_writer_ends_its_writing(writers: Writers) -> None:
    writers.began(5, ONE)
    writers.ended(5, TWO)
    writers.ended(6, ONE)
    assert writers.may_be_written(5) and not writers.may_be_written(6)
    writers.ended(5, ONE)
    writers.ended(5, ONE)
    assert not writers.may_be_written(5)
    assert len(writers._writing) == 0


def test_a_free_seat_ends_all_its_writing_for_ever(table: Table, writers: Writers) -> None:
    for reservation, instance in ((5, ONE), (6, ONE), (7, TWO)):
        writers.began(reservation, instance)
    table.taken.remove(1)
    assert [writers.may_be_written(reservation) for reservation in (5, 6, 7)] == [False, False, True]
    table.taken.add(1)
    assert [writers.may_be_written(reservation) for reservation in (5, 6, 7)] == [False, False, True]
    assert len(writers._writing) == 1


def test_writing_belongs_to_the_greeting_in_which_it_began(table: Table, writers: Writers) -> None:
    writers.began(5, ONE)
    seat = writers.offer(ONE).seat
    table.taken.add(seat)
    assert writers.may_be_written(5)  # the old seat is held still
    table.taken.remove(1)
    assert not writers.may_be_written(5)
    writers.began(8, ONE)
    assert writers.may_be_written(8)


# ---- writers that have a device write ----


class DeviceTable(Table):
    def offer(self) -> PoolOffer:
        return replace(super().offer(), device=DeviceHandle("0" * 128, 0, 10))


@pytest.mark.parametrize("required", [True, False])
def test_who_must_write_on_the_device_and_does_not_is_refused(required: bool) -> None:
    table = DeviceTable()
    writers = Writers(table, required="cuda_ipc" if required else "")
    seat = writers.offer(ONE).seat
    table.taken.add(seat)
    if required:
        with pytest.raises(WireError, match="transfer_backend is cuda_ipc"):
            writers.admit(ONE, True)
    else:
        assert writers.admit(ONE, True) == "shm" and not writers.is_on_device(ONE)
    assert writers.admit(ONE, True, 77) == "cuda_ipc" and writers.is_on_device(ONE)
    writers.offer(ONE)
    assert not writers.is_on_device(ONE)


def test_nobody_writes_on_a_device_that_was_not_offered(table: Table, writers: Writers) -> None:
    assert writers.admit(ONE, True, 77) and not writers.is_on_device(ONE)


def test_a_process_on_its_way_out_may_still_have_its_device_write() -> None:
    table, ending = DeviceTable(), {77}
    writers = Writers(table, required="cuda_ipc", is_ending=ending.__contains__)
    for instance, process in ((ONE, 77), (TWO, 88)):
        table.taken.add(writers.offer(instance).seat)
        assert writers.admit(instance, True, process)
        writers.began(instance, instance)
    table.taken.clear()
    assert [writers.may_be_written(writer) for writer in (ONE, TWO)] == [True, False]
    ending.clear()
    assert not writers.may_be_written(ONE)
    ending.add(77)
    assert not writers.may_be_written(ONE)
