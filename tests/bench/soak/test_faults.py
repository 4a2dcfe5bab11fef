"""Faults on processes that stand in for Baton's."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.soak import faults
from bench.soak.faults import LONGEST_S, SHORTEST_S, Fault, inject, roles_of, schedule, storm

WAITS = "import signal; print('x', flush=True); signal.pause()"


@pytest.fixture
def victim() -> Iterator[psutil.Popen]:
    with psutil.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_every_role_meets_every_fault() -> None:
    roles = ["gateway", "prefill", "decode"]
    strokes = list(islice(schedule(1, roles), 12))
    assert set(Counter(strokes).values()) == {2} and len(set(strokes)) == 6
    assert strokes[:6] != strokes[6:]
    assert all(len({role for _, role in strokes[start : start + 3]}) == 3 for start in range(0, 12, 3)), "each in turn"
    assert all(len({fault for fault, _ in strokes[start : start + 3]}) == 2 for start in range(0, 12, 3))
    assert strokes != list(islice(schedule(2, roles), 12))


@given(
    st.integers(0, 99),
    st.sampled_from([[Fault.KILL], [Fault.STOP], list(Fault)]),
    st.floats(0.5, 60.0),
    st.floats(1.0, 900.0),
)
def test_a_storm_has_a_fault_in_each_period(seed: int, kinds: list[Fault], every_s: float, seconds: float) -> None:
    strokes = storm(seed, kinds, every_s, seconds)
    assert strokes == storm(seed, kinds, every_s, seconds) and len(strokes) == int(seconds / every_s)
    for number, stroke in enumerate(strokes):
        assert number * every_s < stroke.at < (number + 1) * every_s
        assert 0 <= stroke.draw < 1 and SHORTEST_S <= stroke.stopped_s <= LONGEST_S
    counts = Counter(stroke.fault for stroke in strokes)
    assert set(counts) <= set(kinds)
    assert max(counts.values(), default=0) - min((counts[kind] for kind in kinds), default=0) <= 1, "equally frequent"


async def test_it_is_gone(victim: psutil.Popen) -> None:
    assert await inject(Fault.KILL, psutil.Process(victim.pid))
    assert not psutil.pid_exists(victim.pid) or victim.status() == psutil.STATUS_ZOMBIE


async def test_it_stands_still_and_goes_on(victim: psutil.Popen) -> None:
    assert await inject(Fault.STOP, psutil.Process(victim.pid), 0.0)
    for _ in range(1000):
        if victim.status() != psutil.STATUS_STOPPED:
            break
    assert victim.status() != psutil.STATUS_STOPPED


async def test_a_fault_that_has_no_effect_is_told(victim: psutil.Popen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "GONE_S", 0.1)
    assert not await faults._comes_to(psutil.Process(victim.pid), None, 0.1), "nothing was done to it"
    with psutil.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as other:
        gone = psutil.Process(other.pid)
        other.kill()
    assert not await inject(Fault.KILL, gone)
    assert not await faults._comes_to(gone, psutil.STATUS_STOPPED, 0.1)


def test_children_are_known_by_their_module() -> None:
    start = "p = subprocess.Popen([sys.executable, '-m', 'http.server', '0', '--bind', '127.0.0.1'])"
    code = f"import subprocess, sys; {start}"
    with psutil.Popen(
        [sys.executable, "-c", f"{code}; print('x', flush=True); p.wait()"], stdout=subprocess.PIPE
    ) as it:
        it.stdout.readline()
        try:
            processes_of = roles_of(it.pid)
            for _ in range(1000):  # until the child has become another program
                processes_of = processes_of or roles_of(it.pid)
            assert [len(processes_of["http"]), list(processes_of)] == [1, ["http"]]
        finally:
            for child in it.children():
                child.kill()
    assert roles_of(it.pid) == {}
