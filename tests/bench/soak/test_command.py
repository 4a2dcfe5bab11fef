"""Short soak runs on real deployments: faults, clients that leave, rests; nothing wrong or lost."""

import json
from typing import Any

import pytest

from bench.soak.__main__ import main
from bench.soak.faults import Fault
from bench.soak.work import BAD

pytestmark = pytest.mark.slow


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], dict[str, Any], list[Any], str]:
    """Requests by verdict, counts by words, the rows of faults, and all that was said. Nothing is wrong."""
    status = main(words.split())
    said = capsys.readouterr().out
    found = json.loads(said.splitlines()[-1])
    assert status == 0 and found["notes"][-1].startswith("nothing wrong, lost"), said
    tables = found["tables"]
    requests = {row["ended as"]: row["number"] for row in tables["Requests"]}
    assert requests["exact"] > 0 and sum(requests[verdict] for verdict in BAD) == 0
    return requests, {row["what"]: row for row in tables["Counted"]}, tables.get("Faults", []), said


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


@pytest.mark.broad
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


@pytest.mark.broad
def test_ranks_rest_between_two_times_of_load_and_all_answers_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """Pools hold one large request each, so some give way if two meet."""
    asked = "--seconds 24 --fault-every 0 --clients 8 --asks 6 --prefill 0 --decode 0 --unified 1 --pause 0.2 --seed 3"
    served = "--dp-size 2 --enable-dp-attention --retract-to host --max-total-tokens 832"
    _, counted, faults, _ = run(f"{asked} --work 6 --rest 3 -- {served}", capsys)
    assert {each.split()[0] for each in counted["launches"]["of each"].split(", ")} == {"unified-0.0", "unified-0.1"}
    assert counted["times in which nobody asked"]["in all"] > 0 and counted["launches in these"]["in all"] == 0
    assert faults == []
