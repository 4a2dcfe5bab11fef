"""Decides where an option's value comes from: flag over environment variable over TOML file over default.

Takes the written texts and returns values with their origins. options.py declares what a value may be.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from protocol.errors import ConfigError, brief, brief_name
from runtime.options import PREFIX, Option, Value, as_shown, nearest_name, option_name, variable_of

Made = TypeVar("Made")


class Origin(StrEnum):
    """Where a value came from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True)
class Setting:
    """An option, its value, and where it was written (`place`: a flag as typed, a variable, a file). `written`: its
    text there, if that is another spelling of the value."""

    option: Option
    value: Value
    origin: Origin
    place: str = ""
    written: str = ""

    @property
    def where(self) -> str:
        """The place for an error message: `--max-model-len (here --context-length)`, `BATON_PORT`, `port in
        baton.toml`."""
        if self.origin is Origin.FILE:
            return f"{self.option.name} in {self.place}"
        is_alias = self.origin is Origin.FLAG and self.place != self.option.flag
        return f"{self.place} (here {self.option.flag})" if is_alias else self.place

    @property
    def text(self) -> str:
        """The value as text for a flag."""
        return str(self.value).lower() if isinstance(self.value, bool) else as_shown(self.value)


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file as read: flat keys, `-` or `_` alike."""

    path: str
    keys: Mapping[str, Any]


class Config:
    """Every option's setting, by name."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self.settings = settings

    def __getitem__(self, name: str) -> Any:
        """The value of an option, with its field's type. None if it is not set."""
        return self.settings[name].value

    def path(self, name: str) -> str | None:
        """The absolute path of the file or folder that an option names. None if it is not set."""
        value = self[name]
        return None if value is None else str(Path(value).expanduser().absolute())

    def make(self, cls: type[Made], **given: Any) -> Made:
        """The settings of a process. A field's value is the one `given`, else that of the option of its name, else its
        default."""
        for field in fields(cls):  # type: ignore[arg-type]  # every settings class is a dataclass
            name = option_name(field.name)
            if field.name in given or name not in self.settings or self[name] is None:
                continue
            given[field.name] = self.path(name) if self.settings[name].option.is_path else self[name]
        return cls(**given)

    def as_written(self, error: ConfigError) -> ConfigError:
        """The error with place and value as the user wrote them: `--page-size: got 3` becomes `--block-size (here
        --page-size): got 3`. An error that does not begin with a flag stays as it is."""
        setting = self.settings.get(error.param or "")
        flag = f"{setting.option.flag}: " if setting else ""
        if setting is None or setting.origin is Origin.DEFAULT or not error.message.startswith(flag):
            return error
        rest, value = error.message.removeprefix(flag), f"got {setting.value!r}"
        if setting.written and rest.startswith(value):
            rest = f"got {setting.written!r}{rest.removeprefix(value)}"
        return ConfigError(f"{setting.where}: {rest}", param=error.param)


def parse_file(path: str, text: str) -> ConfigFile:
    """The flat keys of a TOML file. ConfigError for bad TOML, a section, or a key that is written twice."""
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits and deeply nested lists
        raise ConfigError(f"{path}: not valid TOML: {str(error)[:200]}") from error

    keys: dict[str, Any] = {}
    for name, value in fields.items():
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
    """The setting of each of `options`. `known`: the options of all commands, since environment and file may serve
    several. `flags`: texts by option name. `spelled`: for each the flag as typed, such as `--max-model-len`."""
    known = tuple(known)
    _refuse_unknown_variables(known, environment, other_variables)
    if file is not None:
        _refuse_unknown_keys(known, file)

    def setting(option: Option) -> Setting:
        if option.name in flags:
            origin, source, text = Origin.FLAG, (spelled or {}).get(option.name, option.flag), flags[option.name]
        elif environment.get(option.variable):  # an empty variable counts as not set
            origin, source, text = Origin.ENVIRONMENT, option.variable, environment[option.variable]
        elif file is not None and option.name in file.keys and option.in_file:
            origin, source, text = Origin.FILE, file.path, file.keys[option.name]
        else:
            return Setting(option, option.default, Origin.DEFAULT)

        where = Setting(option, None, origin, source).where
        value = option.from_toml(text, where) if origin is Origin.FILE else option.from_text(text, where)
        return Setting(option, value, origin, source, text if value in option.synonyms.values() else "")

    return Config({option.name: setting(option) for option in options})


def _refuse_unknown_variables(known: Sequence[Option], environment: Mapping[str, str], others: Iterable[str]) -> None:
    meant = {variable_of(name): option.variable for option in known for name in (option.name, *option.aliases)}
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


def _hint(name: str, meant: Mapping[str, str]) -> str:
    """`, did you mean 'page-size'?`, or a weaker hint if no name is similar. `meant` maps each name that users type to
    the option's name."""
    if near := nearest_name(name, meant):
        return f", did you mean {meant[near]!r}?"
    far = nearest_name(name, meant, least=0.0)
    return f"; the nearest known is {meant[far]!r}" if far else ""
