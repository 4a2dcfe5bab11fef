"""The judge of mutants: it says who killed whom; who survives or no longer applies fails; everything is undone."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.mutant import ANY, Mutant
from tests.mutants.mutants import MUTANTS
from tests.mutants.run import ROOT, Copy, baseline, mutated, sources

TREE = {
    "scheduler/__init__.py": "",
    "scheduler/sum.py": "def add(a: int, b: int) -> int:\n    return a + b  # a sum\n",
    "tests/test_sum.py": "from scheduler.sum import add\n\n\ndef test_add() -> None:\n    assert add(2, 3) == 5\n",
    "pytest.ini": "[pytest]\npythonpath = .\n",
}


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    source = tmp_path / "source"
    for name, text in TREE.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=source, check=True)
    subprocess.run(["git", "add", "."], cwd=source, check=True)
    return Copy(tmp_path / "copy", source)


def sum_mutant(old: str, new: str, tests: str = "tests/test_sum.py") -> Mutant:
    return Mutant("sum", "add", old, new, "wrong", (), (tests,))


@pytest.mark.slow
def test_a_mutant_is_killed_by_name_and_undone(copy: Copy) -> None:
    verdict = copy.judge(sum_mutant("a + b", "a - b"))
    assert verdict.killer == "tests/test_sum.py::test_add"
    assert "killed by" in verdict.line
    assert (copy.folder / "scheduler/sum.py").read_text() == TREE["scheduler/sum.py"]


@pytest.mark.broad
def test_who_changes_nothing_that_is_tested_survives(copy: Copy) -> None:
    verdict = copy.judge(sum_mutant("a + b", "b + a"))
    assert verdict.killer is None and "SURVIVES" in verdict.line


@pytest.mark.parametrize("old", ["a * b", "__x"])  # nowhere, and in more than one place
def test_who_does_not_apply_is_told(copy: Copy, old: str) -> None:
    verdict = copy.judge(sum_mutant(old, "x"))
    assert verdict.killer is None and "NO LONGER APPLIES" in verdict.line


@pytest.mark.broad
def test_killers_that_fail_without_any_mutant_are_told(copy: Copy) -> None:
    assert baseline(copy, []) != ""  # there is nothing to explore in this tree


@pytest.mark.broad
def test_what_does_not_even_start_is_no_kill(copy: Copy) -> None:
    verdict = copy.judge(sum_mutant("a + b", "a + b", "tests/no_such_file.py"))
    assert verdict.killer is None and "BROKEN" in verdict.line


def test_every_mutant_applies_now() -> None:
    texts, failed = sources(ROOT), []
    for mutant in MUTANTS:
        try:
            name, text = mutated(mutant, texts)
            compile(text, name, "exec")
        except (LookupError, SyntaxError) as error:
            failed.append(f"{mutant.name}: {error}")
    assert not failed, "\n".join(failed)


def test_a_path_tells_functions_of_the_same_name_apart() -> None:
    texts = {"decode/sum.py": TREE["scheduler/sum.py"], **TREE}
    with pytest.raises(LookupError, match="fits 2 times"):
        mutated(sum_mutant("a + b", "a - b"), texts)
    mutant = replace(sum_mutant("a + b", "a - b"), function="decode/ add")
    assert mutated(mutant, texts) == ("decode/sum.py", "def add(a: int, b: int) -> int:\n    return a - b")


def test_killers_are_tried_on_files_written_as_a_mutant_writes_them(copy: Copy) -> None:
    copy.rewrite(["scheduler/sum.py"])
    assert (copy.folder / "scheduler/sum.py").read_text() == "def add(a: int, b: int) -> int:\n    return a + b"


def test_every_mutant_names_who_should_notice() -> None:
    assert len(MUTANTS) >= 30 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.old != mutant.new and (mutant.strategies or mutant.tests or mutant.worlds) and mutant.why
        assert set(mutant.strategies) <= set(ANY)
        assert all((ROOT / test).exists() for test in mutant.tests)
