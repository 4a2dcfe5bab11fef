from runtime.clock import MonotonicClock


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = MonotonicClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)
