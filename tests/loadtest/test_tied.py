"""A server that is measured is gone when the measuring process is, however that ends."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from loadtest.tied import tied
from tests.processes import has_ended

SERVES = "import signal; print('serving', flush=True); signal.pause()"
MEASURES = """
import asyncio, sys
from loadtest.tied import tied
async def main():
    child = await asyncio.create_subprocess_exec(*tied([sys.executable, "-c", sys.argv[1]]), stdout=asyncio.subprocess.PIPE)
    print(child.pid, (await child.stdout.readline()).decode(), flush=True)
    await child.wait()
asyncio.run(main())
"""  # noqa: E501
PROJECT = Path(__file__).parents[2]


@pytest.mark.slow
async def test_it_ends_with_who_measures_also_by_kill_9() -> None:
    measuring = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEASURES, SERVES, stdout=asyncio.subprocess.PIPE, cwd=PROJECT
    )
    assert measuring.stdout is not None
    pid, said = (await measuring.stdout.readline()).split()
    assert said == b"serving"
    server = psutil.Process(int(pid))
    assert not has_ended(server)
    measuring.kill()
    await measuring.wait()
    async with asyncio.timeout(120):
        while not has_ended(server):  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


def test_the_command_is_kept_as_it_is() -> None:
    assert tied(["serve", "--port", "0"])[-3:] == ("serve", "--port", "0")
