"""What `make mutants` says at the end, and its exit status."""

import pytest

from tests.mutants.__main__ import report, said_of_changed
from tests.mutants.changed import UNDONE
from tests.mutants.generate import Generated
from tests.mutants.run import Verdict


def verdict(operator: str, killer: str | None) -> Verdict:
    return Verdict(Generated("decode/a.py", "f", 3, operator, "def f():\n    a()", "def f():\n    pass"), killer)


KILLED, LEFT, SAME = verdict("drop a call", "test_a"), verdict("drop a call", None), verdict(UNDONE, None)


@pytest.mark.parametrize(
    "verdicts, is_sample, status",
    [
        ([KILLED], False, 0),
        ([KILLED, LEFT], False, 1),
        ([KILLED, SAME], False, 0),  # a change that only tidies
        ([SAME, LEFT], False, 1),
        ([KILLED, LEFT], True, 0),
        ([], False, 0),
    ],
)
def test_a_survivor_fails_the_command_unless_it_is_one_of_a_sample(
    verdicts: list[Verdict], is_sample: bool, status: int
) -> None:
    assert report(verdicts, is_sample) == status


def test_survivors_are_shown_as_diffs_and_a_sample_by_room(capsys: pytest.CaptureFixture[str]) -> None:
    report([KILLED, LEFT], True)
    said = capsys.readouterr().out
    assert "1 of 2 mutants noticed" in said and "decode             2        1    50%" in said
    assert "\ndecode/a.py:3 f: drop a call" in said and "-    a()\n+    pass" in said


def test_a_change_is_named_and_its_lack_says_what_to_do() -> None:
    assert said_of_changed(["decode/pool.py take"], "HEAD", 3).startswith(
        "Changed since HEAD: decode/pool.py take. 3 generated"
    )
    assert "f7 and 2 more. 5" in said_of_changed([f"f{index}" for index in range(10)], "HEAD", 5)
    assert said_of_changed([], "HEAD", 0).endswith("BEFORE=HEAD~1, or earlier.\n")
