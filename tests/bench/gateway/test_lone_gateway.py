"""What is read of a process that is measured."""

import os
import resource

import pytest

from bench.gateway.lone_gateway import cpu_seconds, peak_memory_mb


def test_the_shortest_work_takes_cpu_time() -> None:
    before = cpu_seconds(os.getpid())
    assert cpu_seconds(os.getpid()) > before


def test_memory_is_in_megabytes() -> None:
    assert peak_memory_mb(os.getpid()) == pytest.approx(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, rel=0.1
    )
