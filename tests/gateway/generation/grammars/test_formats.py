"""Formats: a grammar allows the dates, times, names of hosts and addresses that exist, and no others."""

import random
from datetime import date, timedelta
from functools import cache

import jsonschema_rs
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from protocol.errors import BadRequest
from runtime.grammars import compile_grammar
from tests.byte_grammars import END, VOCABULARY, matcher_of, of_schema
from tests.byte_grammars import allows as accepts
from tests.fuzz.served.validators import FORMATS

FEBRUARIES = [f"{year:04}-02-{day}" for year in range(2105) for day in (28, 29)]
DAYS = [str(date(2023, 1, 1) + timedelta(days=place)) for place in range(2 * 366)]
NEVER = ["2023-04-31", "2023-13-01", "2023-00-10", "2023-02-30", "0000-01-01", "2023-1-1", "12023-01-01"]
TIMES = {"00:00:00Z": True, "23:59:59.1234567z": True, "10:00:00+05:30": True, "23:59:60Z": False, "24:00:00Z": False}


@cache
def grammar(name: str) -> LLMatcher:
    return matcher_of(str(of_schema({"type": "string", "format": name})))


def allows(name: str, text: str) -> bool:
    return accepts(grammar(name), f'"{text}"')


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
    found = of_schema(schema)
    for text, is_allowed in {"2024-02-29": True, "2023-02-29": False, "1996-02-29": False, "2024-03-01": False}.items():
        assert accepts(found, f'"{text}"') == is_allowed, text


LABEL_63 = "a" + "b-" * 30 + "cd"
HOSTS = {
    **dict.fromkeys(
        ("a", "ab", "a-b", "a.b.c", "x1.example.com", "0.0", "a-b-c.de", LABEL_63, f"{LABEL_63}.com"), True
    ),
    **dict.fromkeys(("", "-a", "a-", "a..b", ".a", "a.", "a_b", "ab--c", "xn--a", f"x{LABEL_63}", "é"), False),
}
LOCALS = {
    **dict.fromkeys(("a", "a.b", "a+b", "x" * 64, "first.last", "!#$%&'*+/=?^_`{|}~-"), True),
    **dict.fromkeys(("", ".a", "a.", "a..b", "a b", "x" * 65, "a@b", 'a"b'), False),
}


def test_names_of_hosts() -> None:
    assert {each: allows("hostname", each) for each in HOSTS} == HOSTS
    longest = ".".join([LABEL_63] * 3 + ["x" * 61])
    assert len(longest) == 253 and allows("hostname", longest) and not allows("hostname", longest + "x")


def test_addresses_are_a_person_at_a_host() -> None:
    assert {each: allows("email", f"a@{each}") for each in HOSTS} == HOSTS
    assert {each: allows("email", f"{each}@example.com") for each in LOCALS} == LOCALS
    many = "@mail.department.example.co.uk"
    assert allows("email", f"a{many}") and not allows("email", many) and not allows("email", "a")


@pytest.mark.parametrize("extra", [{"maxLength": 40}, {"minLength": 5, "maxLength": 254}, {"pattern": r"\.de$"}])
@pytest.mark.parametrize(("name", "text"), [("email", "ab@c.de"), ("hostname", "ab.c.de")])
def test_lengths_and_patterns_beside_the_format_hold_as_well(name: str, text: str, extra: dict[str, object]) -> None:
    found = of_schema({"type": "string", "format": name, **extra})
    assert accepts(found, f'"{text}"') and not accepts(found, f'"{text[:-2]}-"')


@pytest.mark.parametrize("name", ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])
def test_random_answers_are_of_their_format(name: str) -> None:
    """Some short, some as long as they may be, of few characters."""
    text = of_schema({"type": "string", "format": name}, compact=True)
    grammar_of_name = compile_grammar(str(text), VOCABULARY)
    valid = jsonschema_rs.validator_for({"type": "string", "format": name}, validate_formats=True).is_valid
    num_ended = 0
    for seed in range(60):
        rng, matching, answer = random.Random(seed), grammar_of_name.begin((END,), late=seed % 2 == 0), b""
        favourite = rng.sample(b"-.:@abz019TZP/", 5)
        while not matching.matcher.is_accepting() and len(answer) < 500:
            bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")[:END]
            may = [int(each) for each in np.flatnonzero(bits)]
            ends = 0x22 in may and rng.random() < (0.3 if seed % 3 else 0.0)
            liked = [each for each in may if each in favourite] or may
            token = 0x22 if ends else rng.choice(liked)
            matching.read([token])
            answer += bytes([token])
            assert not matching.fault, (answer, matching.fault)
        if matching.matcher.is_accepting():
            num_ended += 1
            assert valid(answer[1:-1].decode()), answer
    assert num_ended > 10


DURATIONS = {
    **dict.fromkeys(("P1Y2M3D", "P999999W", "PT999999H999999M999999S", "P1DT12H"), True),
    **dict.fromkeys(("P1000000D", "PT1000000S", "P1Y1000000M", "1D", "P", ""), False),
}


def test_numbers_of_a_duration_have_a_bound() -> None:
    """One of more days than 999,999,999 is none to Python."""
    assert {each: allows("duration", each) for each in DURATIONS} == DURATIONS


@pytest.mark.parametrize("version", [1, 3, 4, 5, 6, 7, 8])
def test_a_uuid_has_the_version_that_its_format_names(version: int) -> None:
    right = f"0f8fad5b-d9cb-{version}69f-a165-70867728950e"
    others = [right.replace(f"-{version}69f", f"-{other}69f") for other in range(10) if other != version]
    wrong = [*others, right.replace("-a165", "-c165"), right[:-1], f"{right}0", right.replace("-", "")]
    assert allows(f"uuid{version}", right) and allows(f"uuid{version}", right.upper())
    assert [each for each in wrong if allows(f"uuid{version}", each)] == []


@pytest.mark.parametrize("name", ["uuid2", "uuid9", "uuid0", "uuid44", "UUID4"])
def test_formats_that_nobody_knows_are_refused(name: str) -> None:
    found = of_schema({"type": "string", "format": name})
    assert isinstance(found, BadRequest) and f"Unknown format: {name}" in found.message
