"""A small group at rest is measured, with real processes."""

import json
import os

import pytest

from bench.ranks.rest import Share, Use, main


def test_what_the_kernel_counts_of_this_process() -> None:
    """The first thread's time is part of all, and nothing of it is ZeroMQ's."""
    found = Use.of(os.getpid())
    assert 0 < found.first_s <= found.cpu_s + 0.1 and found.wakes > 0


def test_shares_of_some_seconds() -> None:
    assert Use(3.0, 2.0, 1.0, 50).since(Use(1.0, 1.0, 0.5, 10), 4.0) == Share(0.5, 0.25, 0.125, 10.0)


@pytest.mark.slow
@pytest.mark.broad
def test_ranks_beside_one_stream_launch_without_tokens_and_none_launches_at_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--size", "2", "--tokens", "20", "--seconds", "2"])  # its status judges CPU, too: not on a busy machine
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    ranks = [row for row in found["rows"] if row["streamed"] is not None]
    assert [row["process"] for row in ranks] == ["unified-0.0", "unified-0.1"]
    assert {row["process"] for row in found["rows"]} > {"gateway", "launcher"}
    assert all(row["streamed"] >= 20 and row["rested"] == 0 for row in ranks)
    busy = [row for row in ranks if row["idle"] == 0]
    assert len(busy) == 1 and all(row["idle"] == row["streamed"] for row in ranks if row not in busy)
    assert [goal["is_met"] for goal in found["goals"][:3]] == [True] * 3
