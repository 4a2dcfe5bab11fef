import threading

from runtime.clock import MonotonicClock, ThreadWorkClock


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = MonotonicClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_work_is_that_of_the_calling_thread() -> None:
    clock, other = ThreadWorkClock(), list[float]()
    start = clock.now()
    while clock.now() - start < 0.01:
        pass
    thread = threading.Thread(target=lambda: other.append(clock.now()))
    thread.start()
    thread.join()
    assert clock.now() - start >= 0.01 and other[0] < clock.now()
