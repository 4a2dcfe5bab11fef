"""Options: fields of a settings class whose annotation has a `Flag`. Name, type and default are the field's.

Pydantic checks the user's text against the field's type. ConfigError names where it was written, its value and what was
expected. layered_config.py decides which source wins.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from inspect import get_annotations
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, Strict, TypeAdapter, ValidationError

from protocol.errors import SHOWN_CHARS, ConfigError, brief

PREFIX: Final = "BATON_"
LIST_MARK: Final = ","  # between the items of a list
MAX_INTEGER: Final = 2**31 - 1  # if the type has no maximum
Value = str | int | bool | tuple[str, ...] | None
_SWITCH: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")
_SUFFIXES: Final = {"k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20}  # as vLLM reads them
_TOML_TYPES: Final = {str: "a string", int: "an integer", float: "a float", bool: "a boolean", list: "an array"}


class Kind(StrEnum):
    """The kind of an option's value, by the name of its type in a JSON schema."""

    TEXT = "string"
    LIST = "array"  # of texts, written with commas between them
    INTEGER = "integer"
    SECONDS = "number"  # users write whole seconds; processes may be given fractions
    SWITCH = "boolean"


_EXPECTED: Final = {
    Kind.SWITCH: "true or false",
    Kind.TEXT: "a string of printable characters",
    Kind.LIST: "strings of printable characters, with commas between them",
}


_METAVARS: Final = {Kind.INTEGER: "N", Kind.SECONDS: "SECONDS"}


@dataclass(frozen=True)
class Flag:
    """In the annotation of a field: makes the field an option and adds what its type does not tell."""

    help: str
    _: KW_ONLY
    group: str
    commands: tuple[str, ...]
    metavar: str = ""  # empty: the kind's
    aliases: tuple[str, ...] = ()  # other flags that mean the same, without dashes
    synonyms: Mapping[str, str] = field(default_factory=dict)  # other spellings of a choice
    unset: str = ""  # for people: the value that the launcher takes if none is given
    expected: str = ""  # for people: what a value must be, if the type cannot tell
    in_file: bool = True


@dataclass(frozen=True, kw_only=True)
class Option(Flag):
    """A field that users may set. `name` is spelled as in the flag: "page-size"."""

    name: str
    type: Any  # the field's
    default: Value

    @property
    def flag(self) -> str:
        """`--page-size`."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """`BATON_PAGE_SIZE`."""
        return variable_of(self.name)

    @property
    def required(self) -> bool:
        """Whether its command requires it."""
        return self.default is None and not self.unset

    @property
    def is_path(self) -> bool:
        """Whether it names a file or folder, which users may write relative to their working directory."""
        return self.metavar in ("DIR", "FILE")

    @cached_property
    def kind(self) -> Kind:
        """The kind of its value."""
        return Kind(self._schema["type"])

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that its type lists, if any."""
        return tuple(self._schema.get("enum", ()))

    @property
    def placeholder(self) -> str:
        """The word for a value in the help."""
        return self.metavar or _METAVARS.get(self.kind, "")

    def from_text(self, text: str, where: str) -> Value:
        """The value of a flag or environment variable. ConfigError names `where`."""
        value: Any = text
        if self.kind in _METAVARS and _INTEGER.fullmatch(text):
            value = int(text)
        elif self.kind is Kind.SWITCH:
            value = _SWITCH.get(text.lower(), text)
        return self._checked(value, where)

    def from_toml(self, value: Any, where: str) -> Value:
        """The value of a key in the file, which must have the right type. ConfigError names `where`."""
        return self._checked(value, where, show_type=True)

    @cached_property
    def _schema(self) -> dict[str, Any]:
        """The JSON schema of a value; `Positive | None` is described as Positive."""
        whole = TypeAdapter(self.type).json_schema()
        merged: dict[str, Any] = {}
        for part in whole.get("anyOf", [whole]):
            merged |= part if part["type"] != "null" else {}
        return merged

    @property
    def _range(self) -> tuple[int, int]:
        schema = self._schema
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        return int(least), int(schema.get("maximum", MAX_INTEGER))

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """Checks a value that is no longer text. With `expected`, only the type does, and no list is empty."""
        wanted: Any = self.type
        if self.kind in _METAVARS:
            least, most = self._range
            wanted = Annotated[int, Field(strict=True, ge=least, le=most)]
        elif self.kind is Kind.SWITCH:
            wanted = Annotated[bool, Strict()]
        elif not self.expected:
            wanted = Annotated[self.type, AfterValidator(_printable)]
        elif self.kind is Kind.LIST:
            wanted = Annotated[self.type, Field(min_length=1)]
        return TypeAdapter(wanted)

    def _checked(self, value: Any, where: str, *, show_type: bool = False) -> Value:
        read = value
        if isinstance(value, str):
            read = listed(value) if self.kind is Kind.LIST else self.synonyms.get(value, value)
        try:
            checked: Value = self._adapter.validate_python(read)
        except ValidationError as error:
            first = error.errors()[0]
        else:
            return tuple(dict.fromkeys(checked)) if isinstance(checked, tuple) else checked

        got = first["input"] if self.kind is Kind.LIST and first["loc"] else value  # one item, or the whole list
        expected = self._expected(is_too_large=first["type"] == "less_than_equal")
        shown = f"{brief(got)}{self._type_shown(got) if show_type else ''}"
        raise ConfigError(f"{where}: got {shown}, expected {expected}{self._hint(got)}", param=self.name)

    def _expected(self, *, is_too_large: bool) -> str:
        if self.expected:
            return self.expected
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind not in _METAVARS:
            return _EXPECTED[self.kind]
        least, most = self._range
        bounded = is_too_large or most != MAX_INTEGER
        return f"an integer from {least} to {most}" if bounded else f"an integer of at least {least}"

    def _type_shown(self, got: Any) -> str:
        wanted = bool if self.kind is Kind.SWITCH else int if self.kind in _METAVARS else str
        return "" if type(got) is wanted else f" ({_TOML_TYPES.get(type(got), 'another type')})"

    def _hint(self, got: Any) -> str:
        near = nearest_name(got, self.choices) if isinstance(got, str) else None
        if self.kind in _METAVARS and isinstance(got, str):
            digits, factor = got[:-1], _SUFFIXES.get(got[-1:])
            near = str(int(digits) * factor) if factor and _INTEGER.fullmatch(digits) else None
        return f" (did you mean {near!r}?)" if near else ""


def options_of(owner: type) -> tuple[Option, ...]:
    """The options that a dataclass itself declares, in order. Its base's options belong to the base."""
    options: list[Option] = []
    for name, annotation in get_annotations(owner).items():
        flags = [note for note in getattr(annotation, "__metadata__", ()) if isinstance(note, Flag)]
        for flag in flags:
            default = None if flag.unset else getattr(owner, name, None)
            options.append(Option(**vars(flag), name=option_name(name), type=annotation, default=default))
    return tuple(options)


def option_name(field_name: str) -> str:
    """`retry_wait_s` becomes `retry-wait`; the help names the unit."""
    return field_name.removesuffix("_s").replace("_", "-")


def variable_of(name: str) -> str:
    """`BATON_PAGE_SIZE` for `page-size`."""
    return PREFIX + name.replace("-", "_").upper()


def as_shown(value: Value) -> str:
    """A value as the help and `baton config` show it: a switch is `on` or `off`."""
    if isinstance(value, tuple):
        return LIST_MARK.join(value)
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def listed(text: str) -> list[str]:
    """The items of a list as written, without the spaces around them."""
    return [item.strip() for item in text.split(LIST_MARK)] if text else []


def _printable(value: str | Sequence[str]) -> str | Sequence[str]:
    """Refuses text that is empty or not printable, because errors and logs show it."""
    lines = (value,) if isinstance(value, str) else value
    if not lines or not all(line and line.isprintable() for line in lines):
        raise ValueError("not printable")
    return value


def nearest_name(typed: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """The name that is most similar to `typed`; None if no similarity is at least `least` (0 to 1)."""
    near = get_close_matches(typed[:SHOWN_CHARS], list(dict.fromkeys(names)), n=1, cutoff=least)
    return near[0] if near else None
