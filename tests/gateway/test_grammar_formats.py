"""Formats of dates and times: a grammar allows those that exist, and no others."""

from datetime import date, timedelta
from functools import cache

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from gateway.grammars import Asked
from tests.byte_grammars import check, matcher_of
from tests.schemas import FORMATS

FEBRUARIES = [f"{year:04}-02-{day}" for year in range(2105) for day in (28, 29)]
DAYS = [str(date(2023, 1, 1) + timedelta(days=place)) for place in range(2 * 366)]
NEVER = ["2023-04-31", "2023-13-01", "2023-00-10", "2023-02-30", "0000-01-01", "2023-1-1", "12023-01-01"]
TIMES = {"00:00:00Z": True, "23:59:59.1234567z": True, "10:00:00+05:30": True, "23:59:60Z": False, "24:00:00Z": False}


@cache
def grammar(name: str) -> LLMatcher:
    found = check(Asked("guided_json", "json", {"type": "string", "format": name}))
    assert isinstance(found, str), found
    return matcher_of(found)


def allows(name: str, text: str) -> bool:
    matcher = grammar(name).deep_copy()
    return matcher.consume_tokens(list(f'"{text}"'.encode())) and matcher.is_accepting()


def is_valid(name: str, text: str) -> bool:
    return bool(Draft202012Validator({"type": "string", "format": name}, format_checker=FORMATS).is_valid(text))


@pytest.mark.parametrize("dates", [FEBRUARIES, DAYS, NEVER], ids=["februaries", "days", "never"])
def test_dates(dates: list[str]) -> None:
    assert [each for each in dates if allows("date", each) != is_valid("date", each)] == []


def test_each_kind_of_year_is_among_them() -> None:
    wanted = {"2024-02-29": True, "2023-02-29": False, "1900-02-29": False, "2000-02-29": True, "0000-02-29": False}
    assert {each: allows("date", each) for each in wanted} == wanted


def test_times_and_moments() -> None:
    assert {each: allows("time", each) for each in TIMES} == TIMES
    for day, is_day in {"2024-02-29": True, "2023-02-29": False}.items():
        for time, is_time in TIMES.items():
            assert (
                allows("date-time", f"{day}T{time}") == (is_day and is_time) == is_valid("date-time", f"{day}T{time}")
            )


def test_a_pattern_of_the_schema_holds_as_well() -> None:
    schema = {"type": "string", "format": "date", "pattern": "^20", "allOf": [{"pattern": "-02-"}]}
    found = check(Asked("guided_json", "json", schema))
    for text, is_allowed in {"2024-02-29": True, "2023-02-29": False, "1996-02-29": False, "2024-03-01": False}.items():
        matcher = matcher_of(str(found))
        assert (matcher.consume_tokens(list(f'"{text}"'.encode())) and matcher.is_accepting()) == is_allowed, text
