from tests.doubles.late_pool import LatePool


def test_work_is_over_after_some_looks_and_runs_once() -> None:
    ran: list[int] = []
    future = LatePool(1, 0.2).submit(ran.append, 7)
    looks = [future.done() for _ in range(64)]
    assert not looks[0] and looks[-1] and looks == sorted(looks)
    assert ran == [7] and future.result() is None
