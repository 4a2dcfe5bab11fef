"""Reads files that a user names: texts of a bounded size, and JSON objects with typed fields.

Errors name the file; those of a field also the field, its value and what was expected.
"""

import json
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from protocol.errors import CheckpointError, brief, brief_name

MAX_JSON_BYTES: Final = 64 << 20
_MISSING: Final = object()
_END: Final = 2**40  # of integers, exclusive


class Unreadable(Exception):
    """A file cannot be read; the text says why. `is_absent`: there is no such file."""

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent


def read_text(path: Path, max_bytes: int, encoding: str = "utf-8") -> str:
    """The text of a file of at most `max_bytes`. Unreadable says what is wrong with it."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("it is not a file")
        if status.st_size > max_bytes:
            raise Unreadable(f"it has {status.st_size} bytes, expected at most {max_bytes}")
        return path.read_text(encoding=encoding)
    except OSError as error:
        raise Unreadable(error.strerror or str(error), is_absent=isinstance(error, FileNotFoundError)) from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"not {encoding.upper().removesuffix('-SIG')} at byte {error.start}") from error


def read_fields(path: Path, *, optional: bool = False) -> "JsonFields":
    """The object in `path`. CheckpointError if the file is too large or not a JSON object.

    An absent file is an error too, unless `optional`: then there are no fields.
    """
    try:
        parsed = json.loads(read_text(path, MAX_JSON_BYTES))
    except Unreadable as error:
        if optional and error.is_absent:
            return JsonFields({}, path.name)
        reason = "no such file; expected a Hugging Face model folder" if error.is_absent else error
        raise CheckpointError(f"{path}: {reason}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({str(error)[:200]})") from None

    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: got a JSON {type(parsed).__name__}, expected an object")
    return JsonFields(parsed, path.name)


class JsonFields:
    """A JSON object with typed getters. A getter without `default` refuses an absent or null field."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where  # file name and, for a nested object, its field

    def refuse(self, name: str, expected: str) -> CheckpointError:
        """The error to raise for field `name`, with its value and what was expected."""
        if name not in self.values:
            return CheckpointError(f"{self.where}: {brief_name(name)} is missing, expected {expected}", param=name)
        got = brief(self.values[name])
        return CheckpointError(f"{self.where}: {brief_name(name)}: got {got}, expected {expected}", param=name)

    def has(self, name: str) -> bool:
        """Whether the field exists and is not null."""
        return self.values.get(name) is not None

    def _get(self, name: str, expected: str, is_right: Callable[[Any], bool], default: object) -> Any:
        """The value of a field; `default` if it is absent or null. CheckpointError if it is not `is_right`."""
        value = self.values.get(name)
        if value is None:
            value = default
        if value is _MISSING or not is_right(value):
            raise self.refuse(name, expected)
        return value

    def integer(self, name: str, default: object = _MISSING, minimum: int = 1) -> int:
        """An integer of at least `minimum`."""
        expected = f"an integer of at least {minimum}"
        return int(self._get(name, expected, lambda value: _is_integer(value) and minimum <= value < _END, default))

    def positive_number(self, name: str, default: object = _MISSING) -> float:
        """A finite number above zero."""
        return float(self._get(name, "a finite number above 0", lambda value: _is_number(value) and value > 0, default))

    def number_within(self, name: str, low: float, high: float, default: float) -> float:
        """A number in [low, high]."""
        expected = f"a number in [{low}, {high}]"
        return float(self._get(name, expected, lambda value: _is_number(value) and low <= value <= high, default))

    def boolean(self, name: str, default: object = _MISSING) -> bool:
        """true or false."""
        return bool(self._get(name, "true or false", lambda value: isinstance(value, bool), default))

    def text(self, name: str, default: object = _MISSING) -> str:
        """A string."""
        return str(self._get(name, "a string", lambda value: isinstance(value, str), default))

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty if the field is absent or null."""

        def is_right(value: Any) -> bool:
            return isinstance(value, list) and all(map(_is_integer, value))

        return tuple(self._get(name, "a list of integers", is_right, []))

    def text_list(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if the field is absent or null."""

        def is_right(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)

        return tuple(self._get(name, "a list of strings", is_right, []))

    def token_ids(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """Token ids, written as one integer or a list of them."""

        def is_right(value: Any) -> bool:
            return all(_is_integer(item) and abs(item) < _END for item in _listed(value))

        ids = self._get(name, "a token id or a list of token ids", is_right, list(default))
        return tuple(dict.fromkeys(_listed(ids)))

    def nested(self, name: str) -> "JsonFields":
        """The object in field `name`; without fields if it is absent or null."""
        value = self._get(name, "an object", lambda value: isinstance(value, dict), {})
        return JsonFields(value, f"{self.where}: {name}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold: neither infinite nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
