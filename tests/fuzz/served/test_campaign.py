"""A campaign on a running pair: which gaps count, what is stored of a finding, and a short one in real processes."""

import json
from pathlib import Path
from threading import Event

import psutil
import pytest

from testkit.roles import role_of
from tests.fuzz.served.campaign import Options, Window, bound_s, run
from tests.fuzz.served.client import Done
from tests.processes import command_line

SEED = 11  # of which the first requests have no finding
LONG_S = 1e5  # numbers of requests and windows end a campaign, also on a busy machine


def done(number: int, began: float, ended: float) -> Done:
    return Done(number, "x", "follows", "", False, began, ended)


def test_a_gap_may_be_a_quarter_of_a_second_or_twice_the_calm_one() -> None:
    assert bound_s(0.01, 0.1) == 0.25
    assert bound_s(0.3, 0.01) == bound_s(0.01, 0.3) == 0.6


def test_requests_in_flight_in_a_gap_are_those_that_overlap_it() -> None:
    requests = [done(1, 0.0, 1.0), done(2, 1.5, 2.5), done(3, 2.2, 2.8), done(4, 2.5, 9.0), done(5, 3.0, 4.0)]
    assert Window(False, 1.0, (2.0, 3.0), requests).in_flight() == [2, 3, 4]


@pytest.mark.slow
def test_a_short_campaign_has_right_answers_and_refusals_and_the_processes_live(tmp_path: Path) -> None:
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    options = Options(SEED, LONG_S / 60, tmp_path, num_clients=2, window_s=LONG_S, most=15, num_windows=1)
    totals = run(options, Event())
    kinds = totals.kinds()
    assert (totals.num_findings - kinds["gap"], totals.has_died) == (0, False), kinds
    assert sum(kinds.values()) - kinds["gap"] == 30 and min(kinds["follows"], kinds["refused"], kinds["cut"]) > 2, kinds

    rows = [json.loads(line) for line in (tmp_path / "windows.jsonl").read_text().splitlines()]
    assert [(row["calm"], row["requests"]) for row in rows[:3]] == [(True, 30), (False, 30), (True, 30)]
    assert all(row["gap_ms"] > 0 for row in rows), "the neighbours' streams went on"
    assert {growth.name for growth in totals.growths} >= {"gateway", "prefill", "decode"}
    assert {each.pid for each in psutil.Process().children(recursive=True)} <= before, "no process is left"


@pytest.mark.slow
def test_a_process_that_ends_ends_the_campaign_and_its_requests_are_stored(tmp_path: Path) -> None:
    before = {each.pid for each in psutil.Process().children(recursive=True)}

    class Kills(Event):
        """Asked before each window. The first time it kills a worker."""

        def is_set(self) -> bool:
            others = (each for each in psutil.Process().children(recursive=True) if each.pid not in before)
            victim = next(each for each in others if role_of(command_line(each)) == "decode")
            victim.kill()
            victim.wait()
            return False

    options = Options(SEED, LONG_S / 60, tmp_path, num_clients=2, window_s=LONG_S, most=3, num_windows=3)
    totals = run(options, Kills())
    assert totals.has_died and totals.num_findings > 0
    stored = sorted(tmp_path.glob("died-*.txt"))
    assert len(stored) == 6 and "--seed 11 --from" in stored[0].read_text()
    assert stored[0].with_suffix(".json").read_bytes()
