"""Objectives are read, and each request is judged by all of them."""

import pytest

from loadtest.figures.record import Ending
from loadtest.figures.slo import meets, parse_slos
from protocol.errors import ConfigError
from tests.loadtest.records import Schedule, record


def test_names_of_other_tools_mean_the_same() -> None:
    assert parse_slos(["ttft:500", "itl:50", "e2el:2000.5"]) == {"ttft": 500, "tpot": 50, "e2e": 2000.5}


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:nan", "ttft:inf", "speed:5", ":5"])
def test_a_wrong_objective_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--goodput: got .*, expected NAME:MILLISECONDS"):
        parse_slos([text])


def test_two_limits_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="tpot is given twice"):
        parse_slos(["tpot:5", "itl:6"])


def test_a_request_is_judged_by_its_own_times() -> None:
    one = record(1.0)  # TTFT 200, TPOT 50, E2E 400 ms
    assert meets(one, {"ttft": 201, "tpot": 50.1, "e2e": 401, "gap": 50.1})
    assert not any(meets(one, slos) for slos in ({"ttft": 199}, {"tpot": 49}, {"e2e": 399}, {"gap": 49}))
    assert meets(record(0.0, Schedule(num_events=1)), {"tpot": 1e-3, "ttft": 201})
    assert not meets(record(0.0, ending=Ending.UNFINISHED), {"ttft": 1e9})
