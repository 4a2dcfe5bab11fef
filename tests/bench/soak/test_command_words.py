"""What a person reads while the soak run goes on, and at its end."""

import pytest

from bench.soak.__main__ import Outcome, endings, last_line, serve_flags
from bench.soak.faults import Fault, Hit
from bench.soak.run import Findings, describe
from bench.soak.watch import Growth
from bench.soak.work import Verdict


@pytest.mark.parametrize(
    "landed, recovered_s, says",
    [
        (True, 4.61, "kill -9 of decode, served again after 4.6 s"),
        (True, None, "kill -9 of decode, not recovered from"),
        (False, 0.2, "kill -9 of decode had no effect"),
    ],
)
def test_a_fault_in_a_line(landed: bool, recovered_s: float | None, says: str) -> None:
    assert describe(Hit(Fault.KILL, "decode", 1, 0.0, landed, recovered_s)) == says


def test_what_requests_have_come_to() -> None:
    findings = Findings()
    assert findings.counts() == "no answers"
    findings.verdicts.update({Verdict.EXACT: 80, Verdict.LEFT: 0, Verdict.ERROR: 3})
    assert findings.counts() == "80 exact, 3 error"


@pytest.mark.parametrize(
    "flat, wrong, says",
    [
        ([True, True], 0, "nothing wrong, lost, grown or left behind"),
        ([True, None], 0, "nothing wrong, lost or left behind; too short to see whether each process stays flat"),
        ([True, False], 0, "problems: p1 grew"),
        ([None, None], 2, "problems: 2 wrong"),
    ],
)
def test_the_last_line(flat: list[bool | None], wrong: int, says: str) -> None:
    findings = Findings(at_rest=True)
    findings.verdicts.update({Verdict.EXACT: 5, Verdict.WRONG: wrong})
    growths = [Growth(f"p{number}", 1, 1.0, 1.0, 0.0, 1, 0.0, one) for number, one in enumerate(flat)]
    assert last_line(Outcome(findings, growths, [], [])) == says


def test_flags_of_the_command_line_replace_those_of_the_soak() -> None:
    flags = {"--dtype": "float32", "--max-total-tokens": "16384", "--decode": "2"}
    assert serve_flags(flags, ["--max-total-tokens", "1024", "--decode=4"]) == ["--dtype=float32"]
    assert serve_flags(flags, []) == ["--dtype=float32", "--max-total-tokens=16384", "--decode=2"]


def test_lines_in_which_the_launcher_names_processes_that_ended() -> None:
    ended = "2026-11-23T23:20:54.389Z error baton unified-1.1 was killed by SIGKILL; it is started again at once"
    others = (
        "2026-11-23T23:20:54.1Z error unified-0.2 the group is broken why=x",
        "2026-11-23T23:21:03Z info baton stopping",
    )
    assert endings([others[0], ended, others[1]]) == [ended]
