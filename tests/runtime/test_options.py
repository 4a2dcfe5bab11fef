import re
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.options import Flag, Kind, Option, nearest_name, options_of


def flag(**more: Any) -> Flag:
    return Flag("what it is for", group="g", commands=("serve",), **more)


@dataclass(frozen=True, kw_only=True)
class Base:
    page_size: Annotated[int, Field(ge=1, le=4096), flag(aliases=("block-size",))] = 16


@dataclass(frozen=True, kw_only=True)
class Settings(Base):
    context: Annotated[Annotated[int, Field(ge=1)] | None, flag(unset="the model's own")] = None
    wait_s: Annotated[float, Field(gt=0), flag()] = 0.5
    role: Annotated[Role, flag(metavar="ROLE")]
    device: Annotated[
        Literal["auto", "cuda"] | Annotated[str, Field(pattern="^cuda:[0-9]$")],
        flag(synonyms={"gpu": "cuda"}, expected="one of auto, cuda, cuda:N", metavar="DEVICE"),
    ] = "auto"
    origins: Annotated[
        tuple[Annotated[str, Field(pattern="^[a-z]+$")], ...], flag(unset="none", expected="small letters")
    ] = ()
    quiet: Annotated[bool, flag()] = False
    host: Annotated[str, flag(unset="the first", metavar="ADDR")] = "127.0.0.1"
    keys: Annotated[str | None, flag(unset="none", metavar="DIR")] = None
    fake: bool = False


OPTIONS = {option.name: option for option in options_of(Settings)}


def test_a_class_has_the_options_that_it_declares_itself() -> None:
    assert [*OPTIONS] == ["context", "wait", "role", "device", "origins", "quiet", "host", "keys"]
    page_size = options_of(Base)[0]
    assert (page_size.flag, page_size.variable) == ("--page-size", "BATON_PAGE_SIZE")
    assert (page_size.default, page_size.help, page_size.aliases) == (16, "what it is for", ("block-size",))


@pytest.mark.parametrize(
    "name, kind, choices, placeholder, default",
    [
        ("context", Kind.INTEGER, (), "N", None),
        ("wait", Kind.SECONDS, (), "SECONDS", 0.5),
        ("role", Kind.TEXT, ("prefill", "decode", "unified"), "ROLE", None),
        ("device", Kind.TEXT, ("auto", "cuda"), "DEVICE", "auto"),
        ("origins", Kind.LIST, (), "", None),
        ("quiet", Kind.SWITCH, (), "", False),
        ("host", Kind.TEXT, (), "ADDR", None),  # the launcher finds it, so the field's default is not the option's
    ],
)
def test_what_follows_from_the_field(
    name: str, kind: Kind, choices: tuple[str, ...], placeholder: str, default: object
) -> None:
    option = OPTIONS[name]
    assert (option.kind, option.choices, option.placeholder, option.default) == (kind, choices, placeholder, default)
    assert option.required == (name == "role")
    assert not option.is_path


def test_a_folder_is_a_path() -> None:
    assert OPTIONS["keys"].is_path


@pytest.mark.parametrize(
    "name, text, toml, value",
    [
        ("context", "+7", 7, 7),
        ("wait", "20", 20, 20),
        ("role", "decode", "decode", Role.DECODE),
        ("device", "gpu", "gpu", "cuda"),
        ("device", "cuda:3", "cuda:3", "cuda:3"),
        ("origins", "a, b,a", ["a", "b"], ("a", "b")),
        ("quiet", "ON", True, True),
        ("host", "a b", "a b", "a b"),
    ],
)
def test_values(name: str, text: str, toml: object, value: object) -> None:
    option = OPTIONS[name]
    assert option.from_text(text, "here") == value
    assert option.from_toml(toml, "here") == value


def test_pydantic_words_never_reach_a_user() -> None:
    """Whatever TOML holds of another type is refused in a sentence of ours."""
    wrong: tuple[Any, ...] = (1.5, [1], [[]], [{}], {}, date(1979, 5, 27))
    for option in OPTIONS.values():
        for value in wrong:
            assert told(option, value).startswith("here: got ")
            assert ", expected " in told(option, value) and "\n" not in told(option, value)


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("context", "0", "here: got 0, expected an integer of at least 1"),
        ("context", "4294967296", "here: got 4294967296, expected an integer from 1 to 2147483647"),
        ("wait", "0", "here: got 0, expected an integer of at least 1"),
        ("wait", "0.5", "here: got '0.5', expected an integer of at least 1"),
        ("role", "decoder", "here: got 'decoder', expected one of prefill, decode, unified (did you mean 'decode'?)"),
        ("device", "cuda:", "here: got 'cuda:', expected one of auto, cuda, cuda:N (did you mean 'cuda'?)"),
        ("device", "cuda:3\n", "here: got 'cuda:3\\n', expected one of auto, cuda, cuda:N (did you mean 'cuda'?)"),
        ("origins", "a,B", "here: got 'B', expected small letters"),
        ("origins", "", "here: got '', expected small letters"),
        ("quiet", "y", "here: got 'y', expected true or false"),
        ("host", "a\nb", "here: got 'a\\nb', expected a string of printable characters"),
    ],
)
def test_a_wrong_value_is_told_in_one_sentence(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OPTIONS[name].from_text(text, "here")
    assert (caught.value.message, caught.value.param) == (says, name)


ODD = ["", "1e3", "0x50", "8_000", "80.0", "nan", "-inf", "１２", "²", "true", " 80", "80\n", "+", "--5", "9" * 5000]


@given(st.sampled_from(ODD) | st.text(max_size=9) | st.integers(-(2**40), 2**40).map(str))
def test_a_text_is_a_number_within_the_bounds_or_refused_in_one_sentence(text: str) -> None:
    is_number = re.fullmatch("[+-]?[0-9]{1,20}", text, re.ASCII) is not None
    if is_number and 1 <= int(text) < 2**31:
        assert OPTIONS["context"].from_text(text, "here") == int(text)
    else:
        with pytest.raises(ConfigError) as caught:
            OPTIONS["context"].from_text(text, "here")
        assert re.fullmatch(
            r"here: got .*, expected an integer (of at least 1|from 1 to 2147483647)( \(.*\))?", str(caught.value)
        )
        assert str(caught.value).isprintable()


@given(st.text(max_size=9).filter(lambda text: text not in [*map(str, Role)]))
def test_a_word_that_is_no_choice_is_refused_with_all_choices(text: str) -> None:
    with pytest.raises(ConfigError, match=r"here: got .*, expected one of prefill, decode, unified"):
        OPTIONS["role"].from_text(text, "here")


def told(option: Option, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        option.from_toml(value, "here")
    return caught.value.message


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("poort", "port"),
        ("prompy", "prompt"),
        ("Port", "port"),
        ("max-requests", "max-running-requests"),  # many letters are missing, but the parts are alike
        ("max_running_requests", "max-running-requests"),
        ("qqq", None),
        ("", None),
    ],
)
def test_the_name_that_was_meant(typed: str, meant: str | None) -> None:
    assert nearest_name(typed, ("prompt", "port", "max-running-requests")) == meant


def test_without_names_none_is_meant() -> None:
    assert nearest_name("port", ()) is None


def test_a_long_word_takes_no_time() -> None:
    assert nearest_name("q" * 1_000_000, ("port",)) is None
