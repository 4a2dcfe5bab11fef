"""What things that requests ask for cost: a short run of the real thing, and the arithmetic."""

import json

import pytest

from bench.asks.__main__ import added, main, row
from bench.commits import HERE


def test_rounds_are_compared_one_by_one() -> None:
    """A machine that is twice as slow in one round changes nothing."""
    times = {"base": [100.0, 200.0, 100.0], "more": [110.0, 220.0, 110.0]}
    found = added(times, "more", "base")
    assert (found["us"], found["added_us"], found["ratio"]) == (110.0, 10.0, 1.1)
    assert found["ratio_interval"] == [1.1, 1.1] and found["added_us_interval"] == [10.0, 20.0]
    assert row("more", found)["added us"] == "10 (10 to 20)"


def test_a_later_commit_needs_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--after", "HEAD"])
    assert "--after needs --before" in capsys.readouterr().err


@pytest.mark.slow
def test_a_short_run_measures_one_request_of_a_kind_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--context", "8", "--steps", "2", "--rounds", "2", "--batch", "2"]
    assert main(["--model", str(HERE / "models/story"), "--kinds", "log-probabilities", *lengths]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["sides"]
    assert {*found} == {"greedy", "log-probabilities, 1 of 2", "log-probabilities, 2 of 2"}
    assert all(each["us"] > 0 for each in found.values())
