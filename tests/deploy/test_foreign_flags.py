import re

import pytest

from deploy.foreign_flags import FOREIGN, ForeignFlag
from deploy.model_folder import PROJECT
from deploy.options import OPTIONS, options_for

PAGE = (PROJECT / "docs" / "flags.md").read_text()


def rows(text: str, heading: str) -> set[tuple[str, ...]]:
    """The cells of a table's rows below a heading."""
    section = text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return {tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines}


def names(flag: ForeignFlag) -> str:
    return ", ".join(f"`{name}`" for name in flag.names)


def test_no_name_stands_twice() -> None:
    names = [name for flag in FOREIGN for name in flag.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_what_is_a_flag_here_is_not_foreign(command: str) -> None:
    ours = {f"--{name}" for option in options_for(command) for name in (option.name, *option.aliases)}
    assert not ours & {name for flag in FOREIGN for name in flag.names}


def test_flags_that_a_hint_names_exist() -> None:
    ours = {f"--{option.name}" for option in OPTIONS}
    named = {flag for foreign in FOREIGN for flag in re.findall(r"--[a-z][a-z-]+", foreign.why)}
    assert {"--prefill", "--chunked-prefill-size"} <= named <= ours


def test_the_page_has_every_alias() -> None:
    aliases = {(f"`--{alias}`", f"`{option.flag}`") for option in OPTIONS for alias in option.aliases}
    assert rows(PAGE, "## The same under another name") == aliases


def test_the_page_has_every_flag_that_is_taken() -> None:
    taken = {
        (names(flag), ", ".join(f"`{value}`" for value in flag.taken) or "the flag", flag.why)
        for flag in FOREIGN
        if flag.taken or flag.alone
    }
    assert rows(PAGE, "## Taken where they change nothing") == taken


def test_the_page_has_every_flag_that_is_refused() -> None:
    refused = {(names(flag), flag.why) for flag in FOREIGN if not (flag.taken or flag.alone)}
    assert rows(PAGE, "## Refused, with what to say instead") == refused
