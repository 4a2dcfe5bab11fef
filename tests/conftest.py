"""What holds for every test: one thread per process, no network hubs, reproducible property tests, Ctrl-C that works.

It runs before any test module is imported, and so before torch reads its environment.
"""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from runtime.processor import product_environment

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.update(product_environment())
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that: servers that tests end
# as Ctrl-C does would never hear of it.
signal.signal(signal.SIGINT, signal.default_int_handler)

HANG_S = 900  # of a test with real processes: beside other load it may take many times as long as alone


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A slow test that hangs is ended later than others."""
    for item in items:
        is_slow = any(item.get_closest_marker(name) for name in ("slow", "broad", "faults", "full"))
        if is_slow and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANG_S))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector never looks at what is imported and collected here: nothing of that is garbage, to look at
    it takes seconds, and many tests collect before they count open files."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Timings never decide a test (no deadline, no check of speed), and workers share no files (no example database).
UNHURRIED = [HealthCheck.too_slow]
settings.register_profile(
    "quick", deadline=None, suppress_health_check=UNHURRIED, database=None, derandomize=True, max_examples=60
)
settings.register_profile("thorough", deadline=None, suppress_health_check=UNHURRIED, database=None, max_examples=1000)
settings.load_profile("quick")
