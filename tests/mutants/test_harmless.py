"""The list of harmless mutants: each entry is still one that the operators make, and says why it may survive."""

from pathlib import Path

import pytest

from tests.mutants.generate import functions, mutants_of
from tests.mutants.harmless import HARMLESS, Harmless, is_harmless

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("entry", HARMLESS, ids=lambda entry: f"{entry.path} {entry.function}")
def test_a_listed_mutant_is_still_made_and_left_out(entry: Harmless) -> None:
    found = functions(entry.path, (ROOT / entry.path).read_text())
    made = [mutant for each in found if each.name == entry.function for mutant in mutants_of(each)]
    alike = [mutant for mutant in made if mutant.change == entry.change]
    assert alike, f"{entry.function} has changed there: remove the entry\n" + "\n".join(entry.change)
    assert all(map(is_harmless, alike)) and not all(map(is_harmless, made))


def test_each_is_listed_once_with_a_reason() -> None:
    keys = [(each.path, each.function, each.change) for each in HARMLESS]
    assert len(set(keys)) == len(keys) and all(len(each.why) > 20 for each in HARMLESS)
