import json
from typing import Any

import pytest

from protocol.errors import SHOWN_CHARS, brief, brief_name

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
