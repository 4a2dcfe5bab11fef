"""Types and constraints of Pydantic, and what answers do with each: the table in docs/http.md.

`python -m tests.gateway.parse_table` prints it. test_grammar_schemas_parse.py tries each type and compares the page.
"""

import ipaddress
import re
import sys
import uuid
from collections import deque
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Optional

import pydantic
from pydantic import AfterValidator, Field, WithJsonSchema, conint

from tests.gateway.parsed_models import (
    Cat,
    Closed,
    Colour,
    Data,
    Dog,
    Email,
    Link,
    Open,
    Pair,
    Part,
    Record,
    Sign,
    Size,
    Tree,
    Whole,
    dotted,
)

MAX_64: Final = 2**63 - 1


def _int(**bounds: Any) -> Any:
    return Annotated[int, Field(**bounds)]


def _float(**bounds: Any) -> Any:
    return Annotated[float, Field(**bounds)]


def _str(**bounds: Any) -> Any:
    return Annotated[str, Field(**bounds)]


def _decimal(**bounds: Any) -> Any:
    return Annotated[Decimal, Field(**bounds)]


def _sized(kind: Any, least: int | None, most: int | None = None) -> Any:
    return Annotated[kind, Field(min_length=least, max_length=most)]


ShortList = Annotated[list[str], Field(max_length=2)]


class Followed(NamedTuple):
    """Each answer is a value of the type. `plain`: what else `model_json_schema()` alone allows."""

    constraint: str
    types: Sequence[Any]
    plain: str = ""

    @property
    def told(self) -> str:
        """The second cell of its row."""
        return (
            f"followed; with `model_json_schema()` instead of `parse()` also {self.plain}" if self.plain else "followed"
        )


class Refused(NamedTuple):
    """No request with the type is served: `types` has each with what the refusal says of it."""

    constraint: str
    why: str
    types: Sequence[tuple[Any, str]]

    @property
    def told(self) -> str:
        """The second cell of its row."""
        return f"refused: {self.why}"


class Unsaid(NamedTuple):
    """The schema that Pydantic writes says less than the type: `types` has each with a value that only the schema
    allows, as JSON."""

    constraint: str
    why: str
    types: Sequence[tuple[Any, str]]

    @property
    def told(self) -> str:
        """The second cell of its row."""
        return f"as far as the schema says: {self.why}"


FOLLOWED: Final = (
    Followed(
        "`int`, `PositiveInt` and others, `gt`, `ge`, `lt`, `le`, `multiple_of`",
        (
            *(int, pydantic.PositiveInt, pydantic.NonPositiveInt, pydantic.NegativeInt, pydantic.StrictInt),
            *(_int(gt=3), _int(ge=-5), _int(lt=3), _int(le=-1), _int(gt=0, lt=1000), _int(multiple_of=7)),
            *(_int(multiple_of=5, ge=-100, le=-3), conint(ge=-(2**31), lt=2**31), conint(ge=-(2**53), le=2**53)),
        ),
    ),
    Followed(
        "`float`, `gt`, `ge`, `lt`, `le`, and with both bounds `multiple_of`",
        (
            *(
                float,
                _float(gt=0),
                _float(ge=0, le=1),
                _float(gt=0, lt=1),
                _float(gt=0, le=0.5),
                _float(gt=-1.5, lt=-1),
            ),
            *(_float(multiple_of=0.25, ge=-1, lt=2), _float(multiple_of=0.01, ge=0, le=10), pydantic.PositiveFloat),
        ),
    ),
    Followed(
        "`str`, `min_length`, `max_length`, `pattern`",
        (
            *(str, pydantic.StrictStr, _str(min_length=2, max_length=5), _str(max_length=0), _str(max_length=100_000)),
            *(_str(pattern=r"^[A-Z]{2}\d{3}$"), _str(pattern=r"^[a-z]+$", min_length=2, max_length=4)),
            *(
                _str(pattern=r"^\w+$"),
                _str(pattern=r"^.{3}$"),
                _str(pattern=r'^[^"\\]*$'),
                _str(pattern="^[äöü]+$"),
            ),
            *(_str(pattern=r"^\p{L}+$"), _str(pattern=r"^[\x20-\x7e]*$"), _str(pattern="^(a|b)$")),
        ),
    ),
    Followed(
        "`bool`, `None`, `Any`, `Literal`, `Enum`",
        (
            *(bool, None, Any, object, Colour, Size, Sign, Literal["only"], Literal[""], Literal[1, "1"]),
            Literal["a", 'b"\\', 3, True, None],
        ),
    ),
    Followed(
        "`Optional`, unions, also with a discriminator",
        (
            *(Optional[int], int | str, _int(gt=5) | _str(max_length=2) | None, Cat | Dog, Optional[Part]),  # noqa: UP045
            *(Annotated[Cat | Dog, Field(discriminator="kind")],),
            list[Annotated[Cat | Dog, Field(discriminator="kind")]],
        ),
    ),
    Followed(
        "`list`, `tuple`, `deque`, `Sequence`, `min_length`, `max_length`",
        (
            *(list[int], list, tuple[int, str], tuple[int, ...], tuple[()], tuple[int, tuple[str, bool]], deque[int]),
            *(
                Sequence[int],
                _sized(list[int], 2),
                _sized(list[int], 1, 3),
                _sized(list[ShortList], 2, 2),
            ),
        ),
    ),
    Followed(
        "`dict[str, ...]`, `max_length`, `min_length=1`",
        (
            dict[str, int],
            dict,
            dict[str, list[int]],
            *(_sized(dict[str, int], *bounds) for bounds in ((1,), (None, 2))),
        ),
    ),
    Followed(
        "`dict` with keys that have a `pattern`",
        (dict[_str(pattern="^[a-z]{2}$"), int],),  # type: ignore[misc]
        plain="with other names",
    ),
    Followed(
        "models in models, recursive ones, aliases, defaults, `RootModel`, `TypedDict`, `NamedTuple`, dataclasses",
        (Part, Tree, Link, Closed, Open, Whole, Record, Pair, Data, dict[str, Part], list[Link]),
    ),
    Followed(
        "`date`, `datetime`, `AwareDatetime`, `time`, `timedelta`",
        (date, datetime, pydantic.AwareDatetime, time, timedelta),
    ),
    Followed(
        "`UUID`, `UUID1` to `UUID8`",
        (uuid.UUID, pydantic.UUID1, pydantic.UUID3, pydantic.UUID4, pydantic.UUID5, pydantic.UUID7, pydantic.UUID8),
    ),
    Followed("`IPv4Address`, `IPv6Address`, `AnyUrl`", (ipaddress.IPv4Address, ipaddress.IPv6Address, pydantic.AnyUrl)),
)

REFUSED: Final = (
    Refused(
        "bounds beyond 2^53, such as those of 64 bits",
        "numbers are exact only up to 2^53",
        (
            (conint(ge=-(2**63), le=MAX_64), "got the number -9223372036854775808, expected none beyond"),
            (conint(ge=0, le=2**64 - 1), "got the number 18446744073709551615"),
            (_int(gt=MAX_64), "got the number 9223372036854775807"),
            (_float(le=1e300), "got the number 1e+300"),
        ),
    ),
    Refused(
        "bounds with more than 15 digits",
        "further digits would be lost",
        ((_float(ge=0.1 + 0.2), "expected at most 15 digits"),),
    ),
    Refused(
        "`set`, `frozenset`",
        "a grammar does not remember which items came (`uniqueItems`)",
        tuple((each, "uniqueItems") for each in (set[int], frozenset[str], _sized(set[int], 1, 3))),
    ),
    Refused(
        "`dict` with `min_length` of 2 or more",
        "names may be written twice, and then count once (`minProperties`)",
        ((_sized(dict[str, int], 2), "minProperties: got 2, expected at most 1"),),
    ),
    Refused(
        "`dict` with keys that are an `Enum`, a `Literal`, a `UUID` or a `date`, or have a length",
        "`propertyNames` is not supported",
        tuple(
            (dict[each, int], "propertyNames")  # type: ignore[valid-type]
            for each in (Colour, Literal["a", "b"], uuid.UUID, date, _str(min_length=2))
        ),
    ),
    Refused(
        r"`pattern` with `\b`, `(?i)` or `\z`",
        "look-around is not supported, and ECMA's dialect has no flags and no `\\z`",
        (
            (_str(pattern=r"\bfoo\b"), "bfoo"),
            (_str(pattern="(?i)^ab$"), "which is no group of ECMA's"),
            (_str(pattern=r"^a\z"), "which is no escape of ECMA's"),
        ),
    ),
    Refused(
        "control characters without a short escape in a `Literal` or an `Enum`",
        "answers are never made of them",
        ((Literal["\x01"], "got the control character"), (Literal["a\x7f"], "got the control character")),
    ),
    Refused(
        "`bytes`, `Base64Str`, `SecretStr`, `Path`, `Pattern`, `IPvAnyAddress`, `IPv4Network`, `NameEmail`, DSNs",
        "a format that Baton does not know",
        (
            *((bytes, "Unknown format: binary"), (pydantic.Base64Bytes, "base64"), (pydantic.Base64Str, "base64")),
            *((pydantic.SecretStr, "Unknown format: password"), (Path, "Unknown format: path"), (re.Pattern, "regex")),
            *((pydantic.IPvAnyAddress, "ipvanyaddress"), (ipaddress.IPv4Network, "ipv4network")),
            *((pydantic.PostgresDsn, "multi-host-uri"),),
            (Annotated[str, WithJsonSchema({"type": "string", "format": "name-email"})], "name-email"),
        ),
    ),
)

UNSAID: Final = (
    Unsaid(
        "`Decimal`, also with bounds, `max_digits` or `decimal_places`",
        "a number within the bounds with any number of digits, or any text",
        (
            (Decimal, '"a"'),
            (_decimal(max_digits=5, decimal_places=2), "1.234"),
            (_decimal(gt=0, le=Decimal("99.5")), '"-1"'),
        ),
    ),
    Unsaid(
        "`FiniteFloat`, `allow_inf_nan=False`",
        "a number without bounds may be 1e999, which is infinite as a double",
        ((pydantic.FiniteFloat, "1e999"), (_float(allow_inf_nan=False), "-1e999")),
    ),
    Unsaid(
        "`float` with `multiple_of` and a bound missing",
        "large multiples that Pydantic, which counts in doubles, takes for none",
        ((_float(multiple_of=0.3), "6674435000.1"), (_float(multiple_of=3, ge=0), "2248110113944060574678924036742")),
    ),
    Unsaid(
        "`PastDate`, `FutureDate`, `PastDatetime`, bounds of dates and times",
        "any date, datetime or timedelta",
        (
            *((pydantic.PastDate, '"9999-01-01"'), (pydantic.FutureDate, '"0001-01-01"')),
            *((pydantic.PastDatetime, '"9999-01-01T00:00:00Z"'), (pydantic.FutureDatetime, '"0001-01-01T00:00:00Z"')),
            (Annotated[date, Field(ge=date(2020, 1, 1))], '"2019-12-31"'),
            (Annotated[timedelta, Field(gt=timedelta(hours=1))], '"PT1M"'),
        ),
    ),
    Unsaid(
        "`NaiveDatetime`",
        "a datetime with its time zone, which this type always refuses",
        ((pydantic.NaiveDatetime, '"2024-01-01T00:00:00Z"'),),
    ),
    Unsaid(
        r"`pattern` with `\D`, `\W` or `\s`",
        "ECMA's dialect, in which digits and letters are ASCII's, and U+FEFF is white space; in Pydantic's digits and"
        " letters are those of all scripts, and U+FEFF is none",
        ((_str(pattern=r"^\W$"), '"é"'), (_str(pattern=r"^\D$"), '"٣"'), (_str(pattern=r"^\s$"), '"\ufeff"')),
    ),
    Unsaid(
        "`dict` with keys that are numbers or `bool`",
        "any names",
        tuple((each, '{"a": 1}') for each in (dict[int, int], dict[float, int], dict[bool, int])),
    ),
    Unsaid(
        "`HttpUrl`, `FileUrl`, `WebsocketUrl`",
        "a URL of any scheme",
        tuple((each, '"a:b"') for each in (pydantic.HttpUrl, pydantic.FileUrl, pydantic.WebsocketUrl)),
    ),
    Unsaid("`EmailStr`", "an address; email-validator demands more, such as a dot in the host", ((Email, '"a@b"'),)),
    Unsaid(
        "`Json`, `complex`, `ByteSize`, `ImportString`",
        "any text, or one with some pattern",
        (
            *((pydantic.Json[list[int]], '"a"'), (complex, '"a"'), (pydantic.ByteSize, '"1 fox"')),
            (pydantic.ImportString, '"no-such-module"'),
        ),
    ),
    Unsaid(
        "validators in Python, such as `AfterValidator`",
        "Pydantic's schema does not know them",
        ((Annotated[str, AfterValidator(dotted)], '"a"'),),
    ),
)


def table() -> list[str]:
    """The lines of the page's table."""
    rows = [f"| {row.constraint} | {row.told} |" for row in (*FOLLOWED, *REFUSED, *UNSAID)]
    return ["| type or constraint | answers |", "|---|---|", *rows]


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
