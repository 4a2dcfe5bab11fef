"""docs/field.md: its tests and mutants exist, one of each at least for every failure that is not called unbuilt."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/field.md").read_text()
NUMBERS = [*range(1, 27), *range(31, 35)]  # of failures that someone has reported
NONE = "–"


class Row(NamedTuple):
    """One failure."""

    number: int
    failure: str
    seen_at: str
    answer: str
    tests: str
    mutants: str


def read_rows() -> list[Row]:
    """The rows of the page's table."""
    cells = ([each.strip() for each in line.strip("| ").split(" | ")] for line in PAGE.splitlines() if "|" in line)
    return [Row(int(number), *rest) for number, *rest in cells if number.isdigit()]


ROWS = read_rows()


def test_every_failure_has_a_row_that_says_where_it_was_seen() -> None:
    assert [row.number for row in ROWS] == NUMBERS
    assert all(re.search(r"\d", row.seen_at) and row.failure and row.answer for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_the_tests_of_a_row_exist(row: Row) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row.tests)
    assert len(named) == row.tests.count("`") / 2
    assert named or (row.tests == NONE and row.answer.startswith("Not built yet"))
    for path, test in named:
        assert re.search(rf"^(?:async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_the_mutants_of_a_row_exist(row: Row) -> None:
    named = set(re.findall(r'"([^"]+)"', row.mutants))
    assert named <= {mutant.name for mutant in MUTANTS}
    assert named if row.tests != NONE else row.mutants == NONE


def test_what_is_not_built_is_said_above_the_table() -> None:
    above = PAGE.partition("\n| ")[0]
    said = {int(number) for number in re.findall(r"\((\d+)\)", above.partition("**Tried")[0])}
    assert {row.number for row in ROWS if row.tests == NONE} <= said
