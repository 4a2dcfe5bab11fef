"""Whether a text is JSON of a schema, by two validators that know nothing of grammars.

jsonschema counts exactly, when numbers are decimals. jsonschema_rs counts in doubles here and there, and knows more of
patterns. Both get patterns that ecma.py has written out. Where they disagree, each is believed in what it is good at.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import date
from decimal import Context, Decimal, InvalidOperation, localcontext
from functools import cache
from typing import Any, Final

import jsonschema_rs
from jsonschema import Draft202012Validator, FormatChecker, validators
from jsonschema.exceptions import ValidationError
from jsonschema_rs import ValidationErrorKind

from gateway.generation.grammars.references import mapped
from tests.fuzz.served.ecma import PYTHON_END, RUST_END, with_patterns

FORMATS: Final = FormatChecker()
FAR: Final = 1_000_000  # an exponent
DIGITS: Final = 2000  # of a decimal: more than any number of an answer has
NUMERIC: Final = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf const enum type".split())
DIALECTS: Final = frozenset("pattern patternProperties additionalProperties format".split())
_IS_NUMBER: Final = Draft202012Validator.TYPE_CHECKER.redefine_many(
    {
        "number": lambda _, value: isinstance(value, int | float | Decimal) and not isinstance(value, bool),
        "integer": lambda _, value: (
            not isinstance(value, bool)
            and (isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value()))
        ),
    }
)


class NotJudged(Exception):
    """A validator does not take the schema."""


def wrong_with(text: str, schema: Any) -> str:
    """Why a text is no JSON of a schema; "" if it is. It begins with "disputed" if the validators disagree in what
    neither is good at. NotJudged if they do not take the schema."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except ValueError as error:
        return f"no JSON: {error}"
    by_rust, by_python = _by_rust(value, schema), _by_python(text, schema)
    if by_rust and by_python:
        return by_rust[1]
    for found, at_home, abroad in ((by_rust, DIALECTS, NUMERIC), (by_python, NUMERIC, DIALECTS)):
        if found and found[0] <= at_home:
            return found[1]
        if found and found[0] <= abroad:
            return ""
    if not by_rust and not by_python:
        return ""
    return "disputed: " + (by_rust or by_python or (frozenset(), ""))[1]


def _finite(text: str) -> float:
    """1e999 is a number in JSON, but none that jsonschema_rs takes."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _decimal(text: str) -> Decimal:
    """A number with a longer exponent than Decimal takes is as far from 0, or as near to it, as no schema looks."""
    try:
        return Decimal(text)
    except InvalidOperation:
        mantissa, _, exponent = text.lower().partition("e")
        return Decimal(f"{mantissa}e{'-' if exponent.startswith('-') else ''}{FAR}")


def _no_constant(text: str) -> Any:
    raise ValueError(f"the constant {text}")


Found = tuple[frozenset[str], str]  # the keywords that do not hold, and a sentence


def _by_rust(value: Any, schema: Any) -> Found | None:
    try:
        dialect = mapped(schema, with_patterns(RUST_END))
        validator = jsonschema_rs.validator_for(dialect, validate_formats=True, retriever=_no_document)
        errors = list(validator.iter_errors(value))
    except (ValueError, jsonschema_rs.ReferencingError, jsonschema_rs.ValidationError) as error:
        raise NotJudged(str(error)[:200]) from error
    keywords = frozenset(str(each.schema_path[-1]) if each.schema_path else "" for each in _within_unions(errors))
    return (keywords, _line(errors[0].message)) if errors else None


def _within_unions(errors: Iterable[jsonschema_rs.ValidationError]) -> Iterator[jsonschema_rs.ValidationError]:
    """The errors in the parts of unions, of which none holds, in place of the unions'."""
    for error in errors:
        if isinstance(error.kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid):
            yield from _within_unions(each for part in error.kind.context for each in part)
        else:
            yield error


def _no_document(uri: str) -> Any:
    raise ValueError(f"no document {uri}")


def _by_python(text: str, schema: Any) -> Found | None:
    dialect = mapped(mapped(schema, with_patterns(PYTHON_END)), _with_named_patterns)
    exact = json.loads(json.dumps(dialect), parse_float=Decimal)
    kind = validators.validator_for(schema if isinstance(schema, dict) else {}, Draft202012Validator)
    kind = _exact(kind)
    with localcontext(Context(prec=DIGITS)):
        try:
            value = json.loads(text, parse_float=_decimal)
            errors = list(_leaves(kind(exact, format_checker=FORMATS).iter_errors(value)))
        except Exception as error:
            raise NotJudged(f"{type(error).__name__}: {error}"[:200]) from error
    keywords = frozenset(name for each in errors for name in _keywords(each))
    return (keywords, _line(errors[0].message)) if errors else None


@cache
def _exact(kind: Any) -> Any:
    """The validators of a draft that count exactly."""
    return validators.extend(kind, type_checker=_IS_NUMBER)


def _keywords(error: ValidationError) -> Iterator[str]:
    """The keyword that does not hold, and those on the way to it that choose by a pattern where it counts."""
    yield str(error.validator)
    yield from DIALECTS.intersection(map(str, error.absolute_schema_path))


def _with_named_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """jsonschema takes an empty pattern for none."""
    named = schema.get("patternProperties")
    if not isinstance(named, dict) or "" not in named:
        return schema
    return {**schema, "patternProperties": {name or "(?:)": each for name, each in named.items()}}


def _leaves(errors: Any) -> Iterator[ValidationError]:
    """The errors that hold no others."""
    for error in errors:
        if error.context:
            yield from _leaves(error.context)
        else:
            yield error


def _line(message: str) -> str:
    return " ".join(message.split())[-300:]


# jsonschema checks times and moments with other packages only. Python takes no more than six digits of a fraction.
TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII)


def _is_date(value: object) -> bool:
    return not isinstance(value, str) or (len(value) == 10 and bool(date.fromisoformat(value)))


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or TIME.fullmatch(value) is not None


def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or (_is_date(value[:10]) and value[10:11] in "Tt" and _is_time(value[11:]))


FORMATS.checks("date", raises=ValueError)(_is_date)
FORMATS.checks("time")(_is_time)
FORMATS.checks("date-time", raises=ValueError)(_is_moment)
