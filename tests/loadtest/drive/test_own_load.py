"""The client judges itself, and knows what the system lets it open."""

import asyncio
import resource

import pytest

from loadtest.drive.own_load import OwnLoad, OwnWatch, check_limits
from loadtest.figures.figures import Window, figures_of
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock
from tests.loadtest.records import Schedule, record

SLOW = figures_of([record(0.0, Schedule(itl_s=0.05))], Window(0, 9), {})
NONE = figures_of([], Window(0, 9), {})


def own(lag_p99_ms: float = 1.0, core: float = 0.5, seconds: float = 9.0) -> OwnLoad:
    return OwnLoad(0.1, lag_p99_ms, 50.0, core, 0.6, 2, seconds)


def test_a_full_core_or_late_wakes_refuse_figures() -> None:
    assert own().refusal(SLOW) is None and own().warning(SLOW) is None
    assert own(core=0.95).refusal(SLOW) == "this client was the bottleneck: it used 95% of a core"
    assert own(core=0.95, seconds=0.5).refusal(SLOW) is None
    assert own(lag_p99_ms=24.0, core=0.6).refusal(SLOW) is None  # half of 50 ms
    assert "woke 26.0 ms late" in str(own(lag_p99_ms=26.0, core=0.6).refusal(SLOW))
    assert own(lag_p99_ms=9.0, core=0.6).refusal(NONE) is None and own(lag_p99_ms=11.0, core=0.6).refusal(NONE)


def test_a_client_that_others_keep_from_its_core_warns_and_refuses_what_is_worth_nothing() -> None:
    late = own(lag_p99_ms=26.0, core=0.1)
    assert late.refusal(SLOW) is None and "26.0 ms late" in str(late.warning(SLOW))
    assert "could not see in time" in str(own(lag_p99_ms=101.0, core=0.1).refusal(SLOW))


async def test_it_sees_its_own_lag_and_work() -> None:
    clock = MonotonicClock()
    watch = OwnWatch(clock)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.05)
    end = clock.now() + 0.2
    while clock.now() < end:  # blocks the loop
        pass
    await asyncio.sleep(0.05)
    task.cancel()
    own = watch.load()
    assert own.lag_max_ms > 100 and own.core > 0 and own.num_cores >= 1


def test_the_limit_of_descriptors_is_raised_and_known() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), before[1]))
        check_limits(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
        with pytest.raises(ConfigError, match=r"^--max-concurrency: got \d+, expected at most \d+: this "):
            check_limits(before[1] + 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
