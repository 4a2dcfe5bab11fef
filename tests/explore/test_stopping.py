"""An exploration that is stopped leaves no process behind."""

import os
import signal
import subprocess
import sys

import pytest

from tests.selecting import first

BEGIN = {  # each says a line once its processes work, and would go on for hours
    "explore": """
from tests.explore.exploring import STRATEGIES, explore
for outcome in explore(range(10**6), STRATEGIES[:1], 2, False):
    print("a seed is done", flush=True)
""",
    "explore_handoff": """
from tests.explore_handoff.exploring import explore
for outcome in explore(range(10**6), 2):
    print("a seed is done", flush=True)
""",
}

WAYS = [
    ("explore", signal.SIGTERM),
    ("explore_handoff", signal.SIGKILL),
    ("explore", signal.SIGKILL),
    ("explore_handoff", signal.SIGTERM),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind, how", first(2, WAYS, num_broad=0))
def test_the_processes_of_a_stopped_exploration_end(kind: str, how: signal.Signals) -> None:
    """Its output ends when the last process that holds it has ended."""
    command = [sys.executable, "-c", BEGIN[kind]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as begun:
        assert begun.stdout is not None
        try:
            assert begun.stdout.readline() == b"a seed is done\n"
            begun.send_signal(how)
            begun.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(begun.pid, signal.SIGKILL)
            pytest.fail("its processes go on")
        assert begun.returncode == -how
