"""Lines through samples, and which lives are flat."""

import os
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.soak.watch import LEAST_S, WARM_UP_S, Life, Watch, growth, slope
from runtime.shared_memory import SharedMemory

SECONDS = int(2 * LEAST_S + 30)


def life(mib_per_s: float, fds_per_s: float, seconds: int = SECONDS, filling_mib: float = 0.0) -> Life:
    """Memory rises by `filling_mib` over the warm-up; from then on by its rate."""
    mib = [100 + mib_per_s * at - filling_mib * max(0.0, 1 - at / WARM_UP_S) for at in range(seconds)]
    return Life("x", 1, [(float(at), mib[at], int(10 + fds_per_s * at)) for at in range(seconds)])


@given(st.floats(-100, 100), st.lists(st.floats(-1000, 1000), min_size=1, max_size=4), st.integers(2, 50))
def test_parallel_lines_have_the_slope_of_each(rise: float, starts: list[float], count: int) -> None:
    lines = [[(float(x) + start, start + rise * x) for x in range(count)] for start in starts]
    assert slope(lines) == pytest.approx(rise, abs=1e-6)


def test_too_few_points_have_no_slope() -> None:
    assert slope([]) == slope([[]]) == slope([[(1.0, 2.0)], [(5.0, 9.0)]]) == slope([[(1.0, 2.0), (1.0, 3.0)]]) == 0


@pytest.mark.parametrize(
    "lives, is_flat",
    [
        ([life(0, 0)], True),
        ([life(-1, 0)], True),
        ([life(0, 0, filling_mib=400)], True),  # what fills at the start is not counted
        ([life(0.1, 0)], False),
        ([life(0, 0.05)], False),
        ([life(0.03, 0.005)], True),  # a step or two
        ([life(0, 0), life(0.2, 0), life(0.2, 0)], False),
        ([life(9, 9, seconds=int(2 * LEAST_S - 5))], None),
        ([life(0.2, 0, seconds=int(LEAST_S))] * 3, False),  # short lives tell together
        ([life(0.1, 0, seconds=int(LEAST_S))] * 3, True),
        ([Life("x", 1)], None),
    ],
)
def test_what_grows_is_told(lives: list[Life], is_flat: bool | None) -> None:
    assert growth("x", lives).is_flat is is_flat


def test_kv_memory_is_not_growth() -> None:
    watch = Watch(os.getpid())
    watch.look(0.0)
    memory = SharedMemory(64 << 20)
    for start in range(0, 64 << 20, 4096):
        memory.mapping[start] = 1
    watch.look(1.0)
    (launcher,) = (life for life in watch._lives.values() if life.pid == os.getpid())
    (_, before, _), (_, after, _) = launcher.samples
    assert after - before < 32


def test_a_watch_sees_children_and_who_is_left() -> None:
    watch = Watch(os.getpid())
    code = "import signal; print('x', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        watch.look(0.0)
        watch.look(1.0)
        assert child.pid in {process.pid for process in watch.processes()}
        growths = {growth.name: growth for growth in watch.growths()}
        assert growths["launcher"].num_lives == 1 and growths["launcher"].rss_max_mib > 5
        assert len(growths) > 1 and all(growth.fds_max >= 3 for growth in growths.values())
        child.kill()
    assert child.pid not in {process.pid for process in watch.processes()}
    assert psutil.Process(os.getpid()) in watch.processes()
