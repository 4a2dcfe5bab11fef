from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from protocol.errors import ConfigError
from runtime.layered_config import Config, Origin, parse_file, resolve
from runtime.options import Flag, options_of


def flag(**more: Any) -> Flag:
    return Flag("", group="g", commands=("serve",), **more)


@dataclass(frozen=True, kw_only=True)
class Settings:
    page_size: Annotated[int, Field(ge=1), flag(aliases=("block-size",))] = 16
    port: Annotated[int, Field(ge=0, le=65535), flag()] = 80
    host: Annotated[str, flag(unset="any")] = "127.0.0.1"
    keys: Annotated[str | None, flag(unset="none", metavar="DIR")] = None
    disable_overlap: Annotated[bool, flag()] = False
    role: Annotated[Literal["a", "unified"], flag(synonyms={"null": "unified"})]
    names: Annotated[tuple[str, ...], flag(unset="none")] = ()
    wait_s: Annotated[float, Field(gt=0), flag()] = 20
    worker_id: str  # found by the launcher
    fake: bool = False


ALL = options_of(Settings)


def values(
    flags: dict[str, str] | None = None, environment: dict[str, str] | None = None, toml: str | None = None
) -> Config:
    file = None if toml is None else parse_file("b.toml", toml)
    return resolve(ALL, ALL, flags or {}, environment or {}, file, ("BATON_INTERNAL",))


def test_flag_beats_environment_beats_file_beats_default() -> None:
    flags, environment, toml = {"page-size": "1"}, {"BATON_PAGE_SIZE": "2"}, "page-size = 3"
    found = [
        values(flags, environment, toml),
        values({}, environment, toml),
        values({}, {}, toml),
        values(),
    ]
    assert [each["page-size"] for each in found] == [1, 2, 3, 16]
    assert [each.settings["page-size"].origin for each in found] == [
        Origin.FLAG,
        Origin.ENVIRONMENT,
        Origin.FILE,
        Origin.DEFAULT,
    ]
    assert [each.settings["page-size"].place for each in found] == ["--page-size", "BATON_PAGE_SIZE", "b.toml", ""]


def test_kinds() -> None:
    found = values({"host": "h", "role": "null"}, {"BATON_DISABLE_OVERLAP": "yes"}, "port = 0")
    assert found["host"] == "h"
    assert found["role"] == "unified"
    assert found["disable-overlap"] is True
    assert found["port"] == 0
    assert found["wait"] == 20
    assert values()["host"] is None


@pytest.mark.parametrize("found", [
    values({"names": "a, b,a"}), values(environment={"BATON_NAMES": "a,b"}), values(toml='names = "a,b"'),
    values(toml='names = ["a", "b"]'),
])  # fmt: skip
def test_lists(found: Config) -> None:
    assert found["names"] == ("a", "b")
    assert values()["names"] is None


@pytest.mark.parametrize("toml", ["names = []", "names = ['a', 5]", "names = 'a,,b'", "names = ''", "names = ['']"])
def test_wrong_lists(toml: str) -> None:
    with pytest.raises(ConfigError, match=r"names in b.toml: got .*expected strings of printable characters, with"):
        values(toml=toml)


def test_a_flag_can_switch_off_what_the_environment_switched_on() -> None:
    assert values({"disable-overlap": "false"}, {"BATON_DISABLE_OVERLAP": "1"})["disable-overlap"] is False


def test_keys_are_spelled_with_dashes_or_underscores() -> None:
    assert values(toml="page_size = 4")["page-size"] == 4
    assert values(toml="page-size = 4")["page-size"] == 4


def test_an_empty_variable_is_not_set() -> None:
    assert values(environment={"BATON_PAGE_SIZE": ""})["page-size"] == 16


def test_variables_of_others_are_ignored() -> None:
    assert values(environment={"HOME": "/", "BATON_INTERNAL": "x"})["page-size"] == 16


@pytest.mark.parametrize(
    "flags, environment, toml, says",
    [
        ({"page-size": "x"}, {}, None, "--page-size: got 'x', expected an integer of at least 1"),
        (
            {"page-size": "8k"},
            {},
            None,
            "--page-size: got '8k', expected an integer of at least 1 (did you mean '8000'?)",
        ),
        ({"page-size": "8K"}, {}, None, "(did you mean '8192'?)"),
        ({"page-size": "0"}, {}, None, "--page-size: got 0, expected an integer of at least 1"),
        ({"port": "65536"}, {}, None, "--port: got 65536, expected an integer from 0 to 65535"),
        ({"role": "unifed"}, {}, None, "--role: got 'unifed', expected one of a, unified (did you mean 'unified'?)"),
        ({}, {"BATON_PAGE_SIZE": "1.5"}, None, "BATON_PAGE_SIZE: got '1.5', expected an integer of at least 1"),
        ({}, {"BATON_DISABLE_OVERLAP": "maybe"}, None, "BATON_DISABLE_OVERLAP: got 'maybe', expected true or false"),
        ({}, {"BATON_PAGESIZE": "1"}, None, "BATON_PAGESIZE is unknown, did you mean 'BATON_PAGE_SIZE'?"),
        ({}, {}, 'page-size = "16"', "page-size in b.toml: got '16' (a string), expected an integer of at least 1"),
        ({}, {}, "page-size = true", "page-size in b.toml: got True (a boolean), expected an integer"),
        ({}, {}, "disable-overlap = 1", "disable-overlap in b.toml: got 1 (an integer), expected true or false"),
        ({}, {}, "wait = 1.5", "wait in b.toml: got 1.5 (a float), expected an integer of at least 1"),
        ({"wait": "0"}, {}, None, "--wait: got 0, expected an integer of at least 1"),
        ({"page-size": "2147483648"}, {}, None, "got 2147483648, expected an integer from 1 to 2147483647"),
        ({}, {}, "names = ['a', 5]", "names in b.toml: got 5 (an integer), expected strings of printable"),
        ({}, {}, "host = 1.5", "host in b.toml: got 1.5 (a float), expected a string"),
        ({}, {}, "page-sise = 1", "b.toml: unknown key 'page-sise', did you mean 'page-size'?"),
        ({}, {}, "prot = 1", "b.toml: unknown key 'prot', did you mean 'port'?"),
        ({}, {}, "block_size = 1", "b.toml: unknown key 'block-size', did you mean 'page-size'?"),
        ({}, {"BATON_BLOCK_SIZE": "1"}, None, "BATON_BLOCK_SIZE is unknown, did you mean 'BATON_PAGE_SIZE'?"),
        ({}, {"BATON_PROT": "1"}, None, "BATON_PROT is unknown, did you mean 'BATON_PORT'?"),
        ({}, {}, "qqq = 1", "b.toml: unknown key 'qqq'; the nearest known is "),
        ({}, {}, "[serve]\nport = 1", "b.toml: section [serve], expected flat keys"),
        ({}, {}, "page-size = 1\npage_size = 2", "b.toml: 'page-size' is written twice"),
        ({}, {}, "page-size =", "b.toml: not valid TOML"),
    ],
)
def test_wrong_values_are_refused_by_name(
    flags: dict[str, str], environment: dict[str, str], toml: str | None, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        values(flags, environment, toml)
    assert says in caught.value.message


@pytest.mark.parametrize(
    "found, where",
    [
        (values({"role": "null"}), "--role"),
        (resolve(ALL, ALL, {"role": "null"}, {}, None, spelled={"role": "--mode"}), "--mode (here --role)"),
        (values({}, {"BATON_ROLE": "null"}), "BATON_ROLE"),
        (values(toml='role = "null"'), "role in b.toml"),
    ],
)
def test_an_error_is_told_with_place_and_value_as_written(found: Config, where: str) -> None:
    def told(message: str, param: str | None = "role") -> str:
        return found.as_written(ConfigError(message, param=param)).message

    assert told("--role: got 'unified', but no") == f"{where}: got 'null', but no"
    assert told("--role: got 'unifie', but no") == f"{where}: got 'unifie', but no"
    for other in ("--page-size: got 3", "no --role: here"):
        assert told(other) == told(other, None) == other
    assert told("--page-size: got 3", "page-size") == "--page-size: got 3"  # a default


def test_a_wrong_value_that_is_overridden_is_not_looked_at() -> None:
    assert values({"page-size": "8"}, {"BATON_PAGE_SIZE": "x"})["page-size"] == 8


def test_settings_are_made_of_the_options_of_their_fields_names() -> None:
    found = values({"page-size": "8", "names": "a,b", "wait": "7"}, {"BATON_ROLE": "null"}, "port = 81")
    made = found.make(Settings, worker_id="w", port=5)
    assert made == Settings(page_size=8, names=("a", "b"), wait_s=7, role="unified", port=5, worker_id="w")


def test_a_path_is_good_wherever_the_process_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = values({"keys": "mine", "host": "mine", "role": "a"})
    assert found["keys"] == "mine" and found.path("keys") == str(tmp_path / "mine")
    made = found.make(Settings, worker_id="w")
    assert (made.keys, made.host) == (str(tmp_path / "mine"), "mine")
    assert values().path("keys") is None
    assert values({"keys": "~/mine"}).path("keys") == str(Path.home() / "mine")
