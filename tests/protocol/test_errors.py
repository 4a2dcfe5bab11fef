import json
from typing import Any

import pytest

from protocol import errors
from protocol.errors import SHOWN_CHARS, BatonError, InternalError, as_baton_error, brief, brief_name, error_from_code

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BatonError) and kind is not BatonError
]


def test_every_code_is_its_own() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_its_code(kind: type[BatonError]) -> None:
    error = error_from_code(kind.code, "what happened")
    assert type(error) is kind
    assert (error.message, error.code, str(error)) == ("what happened", kind.code, "what happened")


def test_an_error_that_a_room_adds_takes_the_code_of_no_other() -> None:
    """It may have the code of its parent, and may be made in another way."""

    class Added(errors.BadRequest):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")

    error = error_from_code(Added.code, "what happened")
    assert (type(error), error.message) == (errors.BadRequest, "what happened")


def test_an_unknown_code_keeps_its_word() -> None:
    error = error_from_code("quota_exceeded", "too much")
    assert type(error) is InternalError
    assert error.message == "quota_exceeded: too much"


def test_any_exception_becomes_ours_and_ours_stays() -> None:
    ours = errors.Overloaded("full", param="n")
    assert as_baton_error(ours) is ours
    assert ours.param == "n"
    made = as_baton_error(KeyError("x"))
    assert (type(made), made.message) == (InternalError, "KeyError: 'x'")


# ---- values in sentences ----


DEEP: Any = 1
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value, shown",
    [
        ("a", "'a'"),
        ("", "''"),
        (5, "5"),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        ({"a": 1}, "{'a': 1}"),
        ("\x1b\n", "'\\x1b\\n'"),
        (b"\xff", "b'\\xff'"),
        ([0] * 1_000_000, "[0, 0, 0, 0, 0, 0, ...]"),
        (DEEP, "[[[[...]]]]"),
        (float("nan"), "nan"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values(value: Any, shown: str) -> None:
    assert brief(value) == shown


@pytest.mark.parametrize(
    "value", ["x" * 10**6, b"x" * 10**6, 10**4000, ["x" * 10**6] * 9, json.loads("[" * 900 + "]" * 900)]
)
def test_what_is_long_is_cut(value: Any) -> None:
    assert len(brief(value)) <= SHOWN_CHARS + 3


def test_names_stand_without_quotes_if_they_can() -> None:
    assert brief_name("model.norm.weight") == "model.norm.weight"
    assert brief_name("a\nb") == "'a\\nb'"
    assert len(brief_name("x" * 10**6)) <= SHOWN_CHARS + 3
