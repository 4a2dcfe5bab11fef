"""Options and where their values come from: flag over environment variable over TOML file over default.

One Option describes a value for the command line, environment, file and help text alike. Pure: takes what was
written, returns values with origins, raises ConfigError. What it does not know: which options Baton has.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from protocol.brief import brief, brief_name
from protocol.errors import ConfigError
from runtime.nearest_name import nearest_name

PREFIX = "BATON_"
LIST_MARK = ","  # between the items of a list
MAX_INTEGER = 2**31 - 1  # of an option that names no maximum of its own
Value = str | int | bool | None
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_SUFFIXES = {"k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20}  # as vLLM reads them; a refusal names the number
_TOML_TYPES = {str: "a string", int: "an integer", float: "a float", bool: "a boolean", list: "an array"}


class Kind(StrEnum):
    """What an option's value is."""

    TEXT = "text"  # one line of it: a name, an address, a path
    PROSE = "prose"  # text of any kind, also none
    LIST = "list"  # several texts; written and kept with commas between them
    INTEGER = "integer"
    SWITCH = "switch"


class Origin(StrEnum):
    """Where a value came from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One value that a user may set. `name` is spelled as in the flag: "page-size"."""

    name: str
    kind: Kind = Kind.TEXT
    default: Value = None
    help: str
    group: str
    commands: tuple[str, ...]
    metavar: str = ""
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)  # other spellings of a choice
    pattern: str = ""  # a regular expression of what is taken beside the choices
    pattern_shown: str = ""  # the same for people
    aliases: tuple[str, ...] = ()  # other flags that mean the same, without dashes
    minimum: int = 0
    maximum: int | None = None
    unset: str = ""  # what a default of None means, for people
    in_file: bool = True
    required: bool = False  # has no default in its one command

    @property
    def flag(self) -> str:
        """`--page-size`."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """`BATON_PAGE_SIZE`."""
        return _variable(self.name)

    @property
    def key(self) -> str:
        """`page_size`."""
        return self.name.replace("-", "_")

    @property
    def expected(self) -> str:
        """What a value must be, for error messages."""
        if self.choices:
            return f"one of {', '.join((*self.choices, self.pattern_shown) if self.pattern else self.choices)}"
        if self.kind is Kind.SWITCH:
            return "true or false"
        if self.kind is Kind.TEXT:
            return "a string of printable characters"
        if self.kind is Kind.LIST:
            return "strings of printable characters, with commas between them"
        if self.kind is Kind.PROSE:
            return "a string"
        if self.maximum is not None:
            return f"an integer from {self.minimum} to {self.maximum}"
        return f"an integer of at least {self.minimum}"

    def from_text(self, text: str, where: str) -> Value:
        """The value of a flag or environment variable; ConfigError names `where`."""
        if self.kind is Kind.INTEGER:
            if not _INTEGER.fullmatch(text):
                digits, factor = text[:-1], _SUFFIXES.get(text[-1:])
                near = str(int(digits) * factor) if factor and _INTEGER.fullmatch(digits) else None
                raise self._wrong(text, where, near)
            return self._checked(int(text), where)
        if self.kind is Kind.SWITCH:
            if text.lower() not in _TRUE + _FALSE:
                raise self._wrong(text, where)
            return text.lower() in _TRUE
        return self._checked(text, where)

    def from_toml(self, value: Any, where: str) -> Value:
        """The value of a key in the file, whose type must be right already; ConfigError names `where`."""
        if self.kind is Kind.LIST and type(value) is list and all(type(each) is str for each in value):
            value = LIST_MARK.join(value)
        wanted = {Kind.INTEGER: int, Kind.SWITCH: bool}.get(self.kind, str)
        if type(value) is not wanted:
            kind = _TOML_TYPES.get(type(value), "another type")
            raise ConfigError(f"{where}: got {brief(value)} ({kind}), expected {self.expected}", param=self.name)
        assert isinstance(value, str | int)
        return self._checked(value, where)

    def _checked(self, value: str | int, where: str) -> Value:
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._in_range(value, where)
        value = self.synonyms.get(value, value)
        if self.choices and value not in self.choices and not (value and re.fullmatch(self.pattern, value)):
            raise self._wrong(value, where, nearest_name(value, self.choices))
        if self.kind is Kind.TEXT and not (value and value.isprintable()):
            raise self._wrong(value, where)
        if self.kind is Kind.LIST and not (value and all(each and each.isprintable() for each in listed(value))):
            raise self._wrong(value, where)
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ConfigError(f"{where}: got {brief(value)}, expected text in UTF-8", param=self.name)
        return value

    def _in_range(self, value: int, where: str) -> int:
        if self.maximum is None and value > MAX_INTEGER:
            raise ConfigError(
                f"{where}: got {brief(value)}, expected an integer from {self.minimum} to {MAX_INTEGER}",
                param=self.name,
            )
        if value < self.minimum or (self.maximum is not None and value > self.maximum):
            raise self._wrong(value, where)
        return value

    def _wrong(self, value: Any, where: str, near: str | None = None) -> ConfigError:
        hint = f" (did you mean {near!r}?)" if near else ""
        return ConfigError(f"{where}: got {brief(value)}, expected {self.expected}{hint}", param=self.name)


@dataclass(frozen=True)
class Setting:
    """An option, its value, and where that was written (`place`: a flag as typed, a variable, a file). `written` is the
    text there, where it is another spelling of the value."""

    option: Option
    value: Value
    origin: Origin
    place: str = ""
    written: str = ""

    @property
    def where(self) -> str:
        """The place for an error message."""
        return _where(self.option, self.origin, self.place)


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file as read: flat keys, `-` or `_` alike."""

    path: str
    keys: Mapping[str, Any]


class Config:
    """Every option's setting. The typed getters are for options of that kind; another kind is our own bug."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self.settings = settings

    def text(self, name: str) -> str:
        """The value of a text option that is set."""
        value = self.settings[name].value
        assert isinstance(value, str), f"option {name} holds {value!r}"
        return value

    def optional_text(self, name: str) -> str | None:
        """The value of a text option, None when it is not set."""
        return None if self.settings[name].value is None else self.text(name)

    def items(self, name: str) -> tuple[str, ...]:
        """The values of a list option, each once; none when it is not set."""
        return tuple(dict.fromkeys(listed(self.optional_text(name) or "")))

    def integer(self, name: str) -> int:
        """The value of an integer option that is set."""
        value = self.settings[name].value
        assert isinstance(value, int), f"option {name} holds {value!r}"
        return value

    def optional_integer(self, name: str) -> int | None:
        """The value of an integer option, None when it is not set."""
        return None if self.settings[name].value is None else self.integer(name)

    def switch(self, name: str) -> bool:
        """The value of a switch."""
        return self.settings[name].value is True

    def as_written(self, error: ConfigError) -> ConfigError:
        """The error with the place of the value, and the value, as the user wrote them: `--page-size: got 3` becomes
        `--block-size (here --page-size): got 3`. An error that does not begin with a flag stays as it is."""
        setting = self.settings.get(error.param or "")
        flag = f"{setting.option.flag}: " if setting else ""
        if setting is None or setting.origin is Origin.DEFAULT or not error.message.startswith(flag):
            return error
        rest, value = error.message.removeprefix(flag), f"got {setting.value!r}"
        if setting.written and rest.startswith(value):
            rest = f"got {setting.written!r}{rest.removeprefix(value)}"
        return ConfigError(f"{setting.where}: {rest}", param=error.param)


def listed(text: str) -> list[str]:
    """The items of a list option, without the space around them."""
    return [each.strip() for each in text.split(LIST_MARK)] if text else []


def parse_file(path: str, text: str) -> ConfigFile:
    """The flat keys of a TOML file; ConfigError for bad TOML, a section, or one key written twice."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits, and lists within lists
        raise ConfigError(f"{path}: not valid TOML: {str(error)[:200]}") from error
    keys: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            raise ConfigError(
                f"{path}: section [{brief_name(name)}], expected flat keys named like the flags", param=name
            )
        key = name.replace("_", "-")
        if key in keys:
            raise ConfigError(f"{path}: {brief(key)} is written twice, with - and with _", param=key)
        keys[key] = value
    return ConfigFile(path, keys)


def resolve(
    options: Iterable[Option],
    known: Iterable[Option],
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: ConfigFile | None,
    other_variables: Iterable[str] = (),
    spelled: Mapping[str, str] | None = None,
) -> Config:
    """The setting of each of `options`. `known` are the options of every command: those of another command may stand in
    the environment or the file, where one place serves several commands. `flags` are as typed, by option name;
    `spelled` has the flag that was typed, `--max-model-len`, for each."""
    known = tuple(known)
    _refuse_unknown_variables(known, environment, other_variables)
    if file is not None:
        _refuse_unknown_keys(known, file)
    return Config({option.name: _setting(option, flags, environment, file, spelled or {}) for option in options})


def _setting(
    option: Option,
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: ConfigFile | None,
    spelled: Mapping[str, str],
) -> Setting:
    if option.name in flags:
        origin, place, text = Origin.FLAG, spelled.get(option.name, option.flag), flags[option.name]
    elif environment.get(option.variable):  # set but empty is not set
        origin, place, text = Origin.ENVIRONMENT, option.variable, environment[option.variable]
    elif file is not None and option.name in file.keys and option.in_file:
        origin, place, text = Origin.FILE, file.path, file.keys[option.name]
    else:
        return Setting(option, option.default, Origin.DEFAULT)
    where = _where(option, origin, place)
    value = option.from_toml(text, where) if origin is Origin.FILE else option.from_text(text, where)
    return Setting(option, value, origin, place, text if value in option.synonyms.values() else "")


def _where(option: Option, origin: Origin, place: str) -> str:
    """`--max-model-len (here --context-length)`, `BATON_PORT`, `port in baton.toml`."""
    if origin is Origin.FILE:
        return f"{option.name} in {place}"
    return f"{place} (here {option.flag})" if origin is Origin.FLAG and place != option.flag else place


def _refuse_unknown_variables(known: Sequence[Option], environment: Mapping[str, str], others: Iterable[str]) -> None:
    meant = {_variable(name): option.variable for option in known for name in (option.name, *option.aliases)}
    accepted = {*(option.variable for option in known), *others}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in accepted:
            raise ConfigError(f"environment variable {brief_name(name)} is unknown{_hint(name, meant)}", param=name)


def _refuse_unknown_keys(known: Sequence[Option], file: ConfigFile) -> None:
    in_file = [option for option in known if option.in_file]
    meant = {name: option.name for option in in_file for name in (option.name, *option.aliases)}
    for key in file.keys:
        if all(key != option.name for option in in_file):
            raise ConfigError(f"{file.path}: unknown key {brief(key)}{_hint(key, meant)}", param=key)


def _variable(name: str) -> str:
    return PREFIX + name.replace("-", "_").upper()


def _hint(name: str, meant: Mapping[str, str]) -> str:
    """`, did you mean 'page-size'?`, or a weaker hint when no name is much like it. `meant` maps each name that users
    type to the name of the option."""
    if near := nearest_name(name, meant):
        return f", did you mean {meant[near]!r}?"
    far = nearest_name(name, meant, least=0.0)
    return f"; the nearest known is {meant[far]!r}" if far else ""
