"""Tests judge generated mutants: which are run, who has noticed, and what an endless loop comes to."""

import subprocess
from pathlib import Path

import pytest

from tests.mutants.candidates import Candidates
from tests.mutants.generate import Generated, functions, mutants_of
from tests.mutants.judging import MOST_S, Judge, judge_first, killer, share_by_room, trace
from tests.mutants.run import Copy, Verdict, judge_all
from tests.mutants.tracing import Ran

SUM = """\
def add(a, b):
    return a + b + 1 - 1

def count(n):
    total = 0
    while total < n:
        total += 1
    return total

def unused(a):
    return not a
"""
TREE = {
    "room/__init__.py": "",
    "tests/__init__.py": "",
    "room/sum.py": SUM,
    "tests/room/test_sum.py": "from room.sum import add\n\ndef test_add():\n    assert add(2, 3) == 5\n",
    "tests/room/test_other.py": "from room.sum import count\n\ndef test_count():\n    assert count(2) == 2\n",
    "pytest.ini": "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n",
}


def mutant(function: str, operator: str) -> Generated:
    made = [mutant for each in functions("room/sum.py", SUM) if each.name == function for mutant in mutants_of(each)]
    return next(each for each in made if each.operator == operator)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    root = Path(__file__).resolve().parents[2]
    source = tmp_path / "source"
    tracing = (root / "tests/mutants/tracing.py").read_text()
    for name, text in {**TREE, "tests/mutants/tracing.py": tracing}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=source, check=True)
    return Copy(tmp_path / "copy", source)


@pytest.mark.slow
def test_a_mutant_is_noticed_by_a_test_that_enters_its_function_and_others_survive(copy: Copy) -> None:
    add, unused = mutant("add", "a number off by one"), mutant("unused", "drop a not")
    endless = mutant("count", "drop a change")
    judge, wrong = trace([copy], [add, unused, endless])
    assert wrong == ""
    assert judge.tests_for(endless) == ["tests/room/test_sum.py", "tests/room/test_other.py"]
    assert judge.tests_for(unused) == ["tests/room/test_sum.py"]

    verdicts = judge_all([copy], [add, unused, endless], lambda copy, each: judge.judge(copy, each, 15))
    assert verdicts[0].killer == "tests/room/test_sum.py::test_add"
    assert verdicts[1].killer is None and "no unit test enters" in verdicts[1].line
    assert verdicts[2].killer is not None and "CPU time" in verdicts[2].killer
    assert (copy.folder / "room/sum.py").read_text() == SUM  # each was undone


@pytest.mark.broad
def test_tests_that_fail_without_a_mutant_are_told(copy: Copy) -> None:
    (copy.folder / "tests/room/test_sum.py").write_text("def test_add():\n    assert False\n")
    (copy.folder / "tests/room/test_sum_more.py").write_text("import no_such_module\n")
    copy.texts["tests/room/test_sum_more.py"] = "import no_such_module\n"
    judge, wrong = trace([copy], [mutant("add", "a number off by one")])
    assert "test_add" in wrong and "no_such_module" in wrong
    assert judge.tests_for(mutant("count", "drop a change")) == ["tests/room/test_other.py"]


@pytest.mark.slow
def test_files_named_like_the_changed_one_judge_it_first(copy: Copy) -> None:
    add, unused = mutant("add", "a number off by one"), mutant("unused", "drop a not")
    told: list[Verdict] = []
    noticed, wrong = judge_first(copy, [add, unused], told.append)
    assert told == noticed
    assert wrong == "" and [verdict.mutant for verdict in noticed] == [add]
    assert noticed[0].killer == "tests/room/test_sum.py::test_add"
    assert (copy.folder / "room/sum.py").read_text() == SUM

    (copy.folder / "tests/room/test_sum.py").write_text("def test_add():\n    assert False\n")
    noticed, wrong = judge_first(copy, [add], told.append)
    assert noticed == [] and "test_add" in wrong, "the change itself is noticed"
    copy.texts = {name: text for name, text in copy.texts.items() if name != "tests/room/test_sum.py"}
    assert judge_first(copy, [add], told.append) == ([], "")


def test_the_quickest_that_enter_the_function_follow_those_of_its_name_up_to_a_minute() -> None:
    texts = {f"tests/room/test_{name}.py": "" for name in ("sum", "sum_ends", "a", "b", "c", "d")}
    costs_s = {"sum": MOST_S, "a": 3.0, "b": 1.0, "c": MOST_S, "d": 0.1}  # sum_ends has no unit test
    entered = {name: "room/sum.py add" if name == "d" else "room/sum.py count" for name in costs_s}
    ran = {f"tests/room/test_{name}.py": Ran(cost_s, frozenset({entered[name]})) for name, cost_s in costs_s.items()}
    judge = Judge(Candidates(texts), ran)
    assert judge.tests_for(mutant("count", "drop a change")) == ["tests/room/test_sum.py"]

    ran["tests/room/test_sum.py"] = Ran(2.0, frozenset())
    chosen = ["tests/room/test_sum.py", "tests/room/test_b.py", "tests/room/test_a.py"]
    assert judge.tests_for(mutant("count", "drop a change")) == chosen


@pytest.mark.parametrize(
    "output, expected",
    [
        ("FAILED tests/a.py::test_b[1] - assert 1 == 2\n1 failed", "tests/a.py::test_b[1]"),
        ("ERROR tests/a.py - NameError: x\n", "tests/a.py"),
        ("..", "the end of pytest, -24: it may take 90 s of CPU time"),
    ],
)
def test_who_has_noticed_is_read_from_what_pytest_says(output: str, expected: str) -> None:
    assert killer(-24, output, 90) == expected


def test_shares_are_told_by_room_and_in_all() -> None:
    text = "def f(a): return not a\n"
    (one,) = (each for function in functions("decode/a.py", text) for each in mutants_of(function))
    (two,) = (each for function in functions("worker/b.py", text) for each in mutants_of(function))
    lines = share_by_room([Verdict(two, "x"), Verdict(one, None), Verdict(two, None), Verdict(two, "x")])
    assert [line.split() for line in lines[1:]] == [
        ["decode", "1", "0", "0%"],
        ["worker", "3", "2", "67%"],
        ["in", "all", "4", "2", "50%"],
    ]
