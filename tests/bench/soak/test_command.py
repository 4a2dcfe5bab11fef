"""A short soak run on a real deployment: three faults, clients that leave, nothing wrong or lost."""

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
    assert {role for _, role in hits} == {"gateway", "prefill", "decode"} and len({fault for fault, _ in hits}) == 3
    assert all(hit["landed"] and hit["recovered_s"] for hit in found["faults"])
    assert found["requests"]["left"] > 0, "nobody left: nothing was tested"
    assert found["requests"]["exact"] > 20
    assert found["at_rest"] and found["orphans"] == []
    told = [line.partition(" s  ")[2] for line in said.splitlines() if " served again after " in line]
    assert len(told) == len(hits), said
    for line, (fault, role) in zip(told, hits, strict=True):
        assert line.startswith(f"{fault} of {role}, served again after "), said
