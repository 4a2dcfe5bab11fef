"""Typed reading of a JSON file of a model folder. Errors name file, field, value and what was expected."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from protocol.brief import brief, brief_name
from protocol.errors import CheckpointError

MAX_JSON_BYTES: Final = 64 << 20
_MISSING: Final = object()


def read_fields(path: Path, *, optional: bool = False) -> "JsonFields":
    """The object in `path`. CheckpointError if the file is too large or not a JSON object.

    An absent file is an error too, unless `optional`: then there are no fields.
    """
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: it is no file; expected a JSON object in one")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES} bytes, expected a smaller file")
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if optional:
            return JsonFields({}, path.name)
        raise CheckpointError(f"{path}: no such file; expected a Hugging Face model folder") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
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

    def _get(self, name: str, expected: str, default: object) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.refuse(name, expected)
        return default

    def integer(self, name: str, default: object = _MISSING, minimum: int = 1) -> int:
        """An integer of at least `minimum`."""
        expected = f"an integer of at least {minimum}"
        value = self._get(name, expected, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**40:
            raise self.refuse(name, expected)
        return value

    def positive_number(self, name: str, default: object = _MISSING) -> float:
        """A finite number above zero."""
        expected = "a finite number above 0"
        value = self._get(name, expected, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.refuse(name, expected)
        return float(value)

    def number_within(self, name: str, low: float, high: float) -> float:
        """A number in [low, high]."""
        expected = f"a number in [{low}, {high}]"
        value = self._get(name, expected, _MISSING)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(name, expected)
        return float(value)

    def boolean(self, name: str, default: object = _MISSING) -> bool:
        """true or false."""
        value = self._get(name, "true or false", default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def text(self, name: str, default: object = _MISSING) -> str:
        """A string."""
        value = self._get(name, "a string", default)
        if not isinstance(value, str):
            raise self.refuse(name, "a string")
        return value

    def text_list(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if the field is absent or null."""
        value = self._get(name, "a list of strings", ())
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.refuse(name, "a list of strings")
        return tuple(value)

    def token_ids(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """Token ids, written as one integer or a list of them."""
        expected = "a token id or a list of token ids"
        value = self._get(name, expected, list(default))
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and abs(item) < 2**40 for item in items):
            raise self.refuse(name, expected)
        return tuple(dict.fromkeys(items))

    def nested(self, name: str) -> "JsonFields | None":
        """The object in field `name`, or None if it is absent or null."""
        value = self._get(name, "an object", None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return JsonFields(value, f"{self.where}: {name}")
