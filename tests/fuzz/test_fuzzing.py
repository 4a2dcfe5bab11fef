"""A child that dies, hangs, is slow or is wrong is noticed, and the next input has a new child."""

import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import fuzzing
from tests.fuzz.fuzzing import Child, Finding, Fuzzing
from tests.fuzz.mutations import LONG, SHORT, mutated
from tests.fuzz.targets import TARGETS, seeds_of

# A child that does what its input says.
OBEYS = """
import json, os, signal, sys
while length := sys.stdin.buffer.read(8):
    raw = sys.stdin.buffer.read(int.from_bytes(length, "big"))
    if raw == b"die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if raw == b"hang":
        signal.pause()
    cpu_s = 0.5 if raw.startswith(b"slow") else 0.0
    wrong = "Traceback" if raw == b"wrong" else ""
    print(json.dumps({"outcome": raw.decode(), "wrong": wrong, "cpu_s": cpu_s}), flush=True)
"""
COMMAND = [sys.executable, "-c", OBEYS]


def test_a_child_that_dies_is_replaced() -> None:
    child = Child(COMMAND)
    assert child.read(b"a").outcome == "a"
    assert child.read(b"die").died == "ended with -11"
    assert child.read(b"b").outcome == "b"
    child.close()


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(COMMAND)
    assert child.read(b"a").outcome == "a"
    monkeypatch.setattr(fuzzing, "PATIENCE_S", 0.01)
    assert child.read(b"hang").died == "hangs"
    monkeypatch.undo()
    assert child.read(b"b").outcome == "b"
    child.close()


def test_each_kind_of_finding_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [b"die", b"fine", b"wrong", b"slow", b"wrong", b"die", b"slow and long" + b"x" * SHORT]
    monkeypatch.setattr(fuzzing, "seeds_of", lambda _: {"first": b"fine"})
    monkeypatch.setattr(fuzzing, "mutated", lambda *_: waiting.pop(0))
    run = Fuzzing("body", Random(0), COMMAND)
    found = list(run.findings(lambda: bool(waiting)))
    assert [(each.kind, each.raw) for each in found] == [("died", b"die"), ("wrong", b"wrong"), ("slow", b"slow")]
    assert run.num_tried == 8 and run.worst == (0.5, b"slow")


def test_a_finding_is_stored_with_what_it_did(tmp_path: Path) -> None:
    path = Finding("died", "ended with -11", b"\xff{").store(tmp_path / "found")
    assert path.read_bytes() == b"\xff{" and path.with_suffix(".txt").read_text() == "ended with -11"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_same_seed_makes_the_same_inputs(target: str) -> None:
    pool = list(seeds_of(target).values())
    random, again = Random(3), Random(3)
    inputs = [mutated(random, pool) for _ in range(300)]
    assert inputs == [mutated(again, pool) for _ in range(300)]
    assert len(set(inputs)) > 290 and max(map(len, inputs)) <= LONG
    assert sum(len(raw) > SHORT for raw in inputs) < 30 and any(len(raw) == SHORT for raw in inputs)


def test_the_real_child_answers_the_stored_inputs() -> None:
    """The process of `make fuzz` itself, on inputs that are refused, served, and not even UTF-8."""
    run = Fuzzing("body", Random(0))
    counted = iter(range(len(seeds_of("body")) + 5))
    assert list(run.findings(lambda: next(counted, None) is not None)) == []
    assert run.num_tried > len(seeds_of("body"))
