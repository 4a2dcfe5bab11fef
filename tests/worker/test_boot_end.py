"""A worker that ends tells its launcher why."""

import os

import pytest

from protocol.errors import BatonError, ConfigError, GroupBroken, InternalError
from runtime.process_life import EXIT_BROKEN, EXIT_CONFIG, StatusPipe
from worker.boot import _tell
from worker.parts import WorkerBroken


def caused(error: BatonError, cause: BatonError) -> BatonError:
    """`error`, raised from `cause`."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, code, status",
    [
        (GroupBroken("rank 1 is gone"), "group_broken", EXIT_BROKEN),
        (caused(WorkerBroken("the ranks stop"), GroupBroken("rank 1 is gone")), "group_broken", EXIT_BROKEN),
        (caused(InternalError("the first forward"), GroupBroken("rank 1 is gone")), "group_broken", EXIT_BROKEN),
        (WorkerBroken("three launches"), "worker_broken", EXIT_BROKEN),
        (ConfigError("no such model"), ConfigError.code, EXIT_CONFIG),
    ],
)
def test_a_broken_group_is_told_from_a_broken_worker(error: BatonError, code: str, status: int) -> None:
    """So that the launcher names the rank that began."""
    reading, writing = os.pipe()
    assert _tell(error, StatusPipe(writing)) == status
    told = os.read(reading, 1000).decode()
    os.close(reading)
    os.close(writing)
    assert f'"code": "{code}"' in told and error.message in told
