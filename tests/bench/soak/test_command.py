"""Short soak runs on real deployments: faults, clients that leave, rests; nothing wrong or lost."""

import json

import pytest

from bench.soak.__main__ import main

pytestmark = pytest.mark.slow


def test_a_short_run_with_faults_has_nothing_wrong_or_lost(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--seconds 30 --fault-every 10 --clients 4 --asks 6 --prefill 1 --decode 2 --seed 3"
    status = main(asked.split())
    said = capsys.readouterr().out
    found = json.loads(said.splitlines()[-1])
    assert (status, found["problems"], found["verdict"]) == (0, [], "pass"), said
    hits = [(hit["fault"], hit["role"]) for hit in found["faults"]]
    assert {role for _, role in hits} == {"gateway", "prefill", "decode"} and len({fault for fault, _ in hits}) == 2
    assert all(hit["landed"] and hit["recovered_s"] for hit in found["faults"])
    assert found["requests"]["left"] > 0, "nobody left: nothing was tested"
    assert found["requests"]["exact"] > 20
    assert found["at_rest"] and found["orphans"] == []
    told = [line.partition(" s  ")[2] for line in said.splitlines() if " served again after " in line]
    assert len(told) == len(hits), said
    for line, (fault, role) in zip(told, hits, strict=True):
        assert line.startswith(f"{fault} of {role}, served again after "), said


@pytest.mark.broad
def test_a_storm_of_faults_leaves_everything_serving(capsys: pytest.CaptureFixture[str]) -> None:
    """Pauses cost no counted start."""
    asked = "--storm --seconds 24 --fault-every 4 --hit prefill,decode --clients 4 --asks 6 --seed 5"
    status = main(asked.split())
    said = capsys.readouterr().out
    found = json.loads(said.splitlines()[-1])
    assert (status, found["problems"], found["verdict"]) == (0, [], "pass"), said
    assert len(found["faults"]) + found["missed"] == 6 and found["missed"] < 3
    assert {hit["fault"] for hit in found["faults"]} == {"kill -9", "SIGSTOP, then SIGCONT"}
    assert all(hit["landed"] and hit["role"] in ("prefill", "decode") for hit in found["faults"])
    kills = sum(hit["fault"] == "kill -9" for hit in found["faults"])
    assert 0 < found["starts"]["counted"] <= kills and found["healed_s"] is not None
    assert found["requests"]["exact"] > 0 and found["at_rest"]


@pytest.mark.broad
def test_ranks_rest_between_two_times_of_load_and_all_answers_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """Pools hold one large request each, so some give way if two meet."""
    asked = "--seconds 24 --fault-every 0 --clients 8 --asks 6 --prefill 0 --decode 0 --unified 1 --pause 0.2 --seed 3"
    served = "--dp-size 2 --enable-dp-attention --retract-to host --max-total-tokens 832"
    status = main([*asked.split(), "--work", "6", "--rest", "3", "--", *served.split()])
    said = capsys.readouterr().out
    found = json.loads(said.splitlines()[-1])
    assert (status, found["problems"], found["verdict"]) == (0, [], "pass"), said
    assert set(found["counted"]["launches"]) == {"unified-0.0", "unified-0.1"}
    assert found["rests"] and not any(rest["launches"] for rest in found["rests"])
    assert found["requests"]["exact"] > 0 and found["faults"] == []
