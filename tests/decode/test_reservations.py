from decode.reservations import first_reservation
from scheduler.request_check import MAX_RESERVATION


def test_no_two_processes_use_the_same_reservations() -> None:
    starts = [first_reservation(instance) for instance in (0, 1, 2, 2**31 - 1, 2**62 - 1)]
    assert all(abs(one - other) >= 2**32 for one in starts for other in starts if one != other)
    assert max(starts) + 2**32 <= MAX_RESERVATION
