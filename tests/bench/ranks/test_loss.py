"""The loss of an idle rank is timed, with real processes."""

import json

import pytest

from bench.ranks.loss import main


@pytest.mark.slow
@pytest.mark.broad
def test_a_killed_and_a_paused_rank_are_timed_and_their_group_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    """How long it takes is not judged here."""
    main(["--rounds", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["times"]) == {"kill -9", "SIGSTOP"}
    for [times] in found["times"].values():
        assert 0 < times["noticed"] < times["goes on"] and times["noticed"] < times["back"]
