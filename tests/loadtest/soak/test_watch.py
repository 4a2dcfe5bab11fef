"""Lines through samples, and which lives are flat."""

import os
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.soak.watch import LEAST_S, WARM_UP_S, Life, Watch, growth, slope

SECONDS = int(WARM_UP_S + LEAST_S + 30)


def life(mib_per_s: float, fds_per_s: float, seconds: int = SECONDS, start_mib: float = 0.0) -> Life:
    jump = [(0.0, start_mib, 3)]
    return Life(
        "x", 1, jump + [(float(at), 100 + mib_per_s * at, int(10 + fds_per_s * at)) for at in range(1, seconds)]
    )


@given(st.floats(-100, 100), st.floats(-1000, 1000), st.integers(2, 50))
def test_the_slope_of_a_line_is_its_slope(rise: float, start: float, count: int) -> None:
    assert slope([(float(x), start + rise * x) for x in range(count)]) == pytest.approx(rise, abs=1e-6)


def test_too_few_points_have_no_slope() -> None:
    assert slope([]) == slope([(1.0, 2.0)]) == slope([(1.0, 2.0), (1.0, 3.0)]) == 0


@pytest.mark.parametrize(
    "lived, is_flat",
    [
        (life(0, 0), True),
        (life(-1, 0), True),
        (life(0, 0, start_mib=-400), True),  # what fills at the start is not counted
        (life(0.5, 0), False),
        (life(0, 0.5), False),
        (life(9, 9, seconds=int(WARM_UP_S + LEAST_S - 5)), None),
        (Life("x", 1), None),
    ],
)
def test_what_grows_is_told(lived: Life, is_flat: bool | None) -> None:
    assert growth(lived).is_flat is is_flat


def test_a_watch_sees_children_and_who_is_left() -> None:
    watch = Watch(os.getpid())
    code = "import signal; print('x', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        watch.look(0.0)
        watch.look(1.0)
        assert child.pid in {each.pid for each in watch.processes()}
        found = {each.pid: each for each in watch.growths()}
        assert found[os.getpid()].name == "launcher" and found[os.getpid()].rss_mib > 5
        assert found[child.pid].fds >= 3
        child.kill()
    assert child.pid not in {each.pid for each in watch.processes()}
    assert psutil.Process(os.getpid()) in watch.processes()
