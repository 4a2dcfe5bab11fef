"""The soak run: what a person reads while it goes on and at its end; and short runs on real deployments."""

import json
from typing import Any

import pytest

from bench.soak.__main__ import Outcome, last_line, main, serve_flags
from bench.soak.faults import Fault, Hit
from bench.soak.run import Findings, describe
from bench.soak.watch import Growth
from bench.soak.work import BAD
from loadtest.verify.judge import Verdict


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


KILLED = "Z error baton decode-0 was killed by SIGKILL; it is started again in 2 s, restart 4 in a row"
PAUSED = "Z error baton decode-0 ended: x; decode-0 was paused, so this does not count; it is started again at once"


@pytest.mark.parametrize(
    "kills, stops, ends, problems",
    [
        (2, 3, [KILLED, KILLED, PAUSED, PAUSED, PAUSED], []),
        (2, 3, [KILLED, KILLED, KILLED, PAUSED], ["3 starts were counted, for 2 kills"]),
        (0, 1, [KILLED], ["1 starts were counted, for 0 kills"]),
        (3, 0, [KILLED], []),  # the kill of a process that was starting
    ],
)
def test_a_pause_costs_no_counted_start(kills: int, stops: int, ends: list[str], problems: list[str]) -> None:
    hits = [Hit(fault, "decode", 1, 0.0, True, 1.0) for fault in [Fault.KILL] * kills + [Fault.STOP] * stops]
    findings = Findings(at_rest=True, hits=hits)
    findings.verdicts[Verdict.EXACT] = 1
    assert (findings.num_landed(Fault.KILL), findings.num_landed(Fault.STOP)) == (kills, stops)
    assert Outcome(findings, [], [], [], ends).problems() == problems


@pytest.mark.parametrize("healed_s", [None, 12.5])
def test_after_a_storm_everything_must_serve(healed_s: float | None) -> None:
    """Its faults do not heal one by one. Each kind is told once."""
    hits = [Hit(Fault.KILL, "decode", pid, 0.0, True) for pid in range(5)]
    findings = Findings(at_rest=True, hits=hits, healed_s=healed_s)
    findings.verdicts[Verdict.EXACT] = 1
    assert findings.problems() == ([] if healed_s else ["no recovery from kill -9 of decode"])


def test_a_role_that_nobody_has_cannot_be_hit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hit", "decode,unified"]) == 2
    assert capsys.readouterr().err == "soak: error: --hit: got 'unified', expected some of decode, gateway, prefill\n"


# ---- faults, clients that leave, rests; nothing wrong or lost ----


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], dict[str, Any], list[Any], str]:
    """Requests by verdict, counts by words, the rows of faults, and all that was said. Nothing is wrong."""
    status = main(words.split())
    said = capsys.readouterr().out
    report = json.loads(said.splitlines()[-1])
    assert status == 0 and report["notes"][-1].startswith("nothing wrong, lost"), said
    tables = report["tables"]
    requests = {row["ended as"]: row["number"] for row in tables["Requests"]}
    assert requests["exact"] > 0 and sum(requests[verdict] for verdict in BAD) == 0
    return requests, {row["what"]: row for row in tables["Counted"]}, tables.get("Faults", []), said


@pytest.mark.slow
def test_a_short_run_with_faults_has_nothing_wrong_or_lost(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--seconds 30 --fault-every 10 --clients 4 --asks 6 --prefill 1 --decode 2 --seed 3"
    requests, _, faults, said = run(asked, capsys)
    assert {row["of"] for row in faults} == {"gateway", "prefill", "decode"}
    assert {row["fault"] for row in faults} == {str(fault) for fault in Fault}
    assert all(row["number"] == row["landed"] == row["recovered"] for row in faults)
    assert requests["left"] > 0, "nobody left: nothing was tested"
    assert requests["exact"] > 20
    told = [line for line in said.splitlines()[:-1] if " served again after " in line]  # the last line has all notes
    assert len(told) == sum(row["number"] for row in faults)


@pytest.mark.slow
@pytest.mark.full
def test_a_storm_of_faults_leaves_everything_serving(capsys: pytest.CaptureFixture[str]) -> None:
    """Pauses cost no counted start."""
    asked = "--storm --seconds 24 --fault-every 4 --hit prefill,decode --clients 4 --asks 6 --seed 5"
    _, counted, faults, _ = run(asked, capsys)
    missed = counted["faults for which no process was there"]["in all"]
    assert sum(row["number"] for row in faults) + missed == 6 and missed < 3
    assert {row["fault"] for row in faults} == {str(fault) for fault in Fault}
    assert all(row["number"] == row["landed"] and row["of"] in ("prefill", "decode") for row in faults)
    starts = int(counted["kills"]["of each"].split()[0])
    assert 0 < starts <= counted["kills"]["in all"]
    assert counted["seconds until all served after the storm"]["in all"] is not None


@pytest.mark.slow
@pytest.mark.full
def test_ranks_rest_between_two_times_of_load_and_all_answers_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """Pools hold one large request each, so some are preempted if two meet."""
    asked = "--seconds 24 --fault-every 0 --clients 8 --asks 6 --prefill 0 --decode 0 --unified 1 --pause 0.2 --seed 3"
    served = "--dp-size 2 --enable-dp-attention --retract-to host --max-total-tokens 832"
    _, counted, faults, _ = run(f"{asked} --work 6 --rest 3 -- {served}", capsys)
    assert {counts.split()[0] for counts in counted["launches"]["of each"].split(", ")} == {
        "unified-0.0",
        "unified-0.1",
    }
    assert counted["times in which nobody asked"]["in all"] > 0 and counted["launches in these"]["in all"] == 0
    assert faults == []
