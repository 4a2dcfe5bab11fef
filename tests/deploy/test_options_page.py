"""docs/options.md says what the defaults really are."""

import re
from pathlib import Path

import pytest

from deploy.config_report import show
from deploy.options import COMMANDS, RAY_CONFIG, options_for
from runtime.layered_config import Origin, Setting
from runtime.options import Option

PAGE = (Path(__file__).resolve().parents[2] / "docs/options.md").read_text()
NAMES = ("baton", "worker", RAY_CONFIG)
TABLES = dict(zip(NAMES, re.split(r"\n`baton worker` starts|\n`baton ray config` takes", PAGE), strict=True))


def told(table: str) -> dict[str, str]:
    """By flag: its default. A row of several flags has a default for each, with commas between them."""
    defaults_told = dict[str, str]()
    for flags, default in re.findall(r"^\| (`--.*?) \| (.*?) \|", TABLES[table], re.MULTILINE):
        names = re.findall(r"--[a-z-]+", flags)
        defaults = default.split(", ") if len(names) > 1 else [default]
        defaults_told |= {name: value.replace("`", "") for name, value in zip(names, defaults, strict=True)}
    return defaults_told


def default_of(option: Option) -> str:
    """As the page says it."""
    return "required" if option.required else show(Setting(option, option.default, Origin.DEFAULT)).strip("()")


@pytest.mark.parametrize(
    ("table", "commands"),
    [("baton", ("demo", "worker", "gateway", "serve")), ("worker", ["worker"]), (RAY_CONFIG, [RAY_CONFIG])],
)
def test_every_default_is_the_options_own(table: str, commands: tuple[str, ...]) -> None:
    """Where commands differ, the page has that of `baton serve`."""
    assert set(commands) <= {*COMMANDS, RAY_CONFIG}
    real = {option.flag: default_of(option) for command in commands for option in options_for(command)}
    assert len(on_page := told(table)) > 5
    assert {flag: real[flag] for flag in on_page} == on_page
