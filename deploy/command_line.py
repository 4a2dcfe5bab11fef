"""The command line: argparse built from the option table, and errors that say what was meant.

What it does not know: environment and file (runtime/layered_config.py), or what a command does.
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from deploy.options import COMMANDS, EXAMPLES, NOT_YET, options_for
from protocol.brief import SHOWN_CHARS, brief
from protocol.errors import ConfigError
from runtime.layered_config import Kind, Option

_FOOTER = """\
Every flag is also an environment variable (--log-level: BATON_LOG_LEVEL) and a key of the --config file
(log-level = "debug"). A flag wins over the environment, the environment over the file; `baton config` shows
the outcome."""
KEYS_USAGE = "baton keys new DIR [NAME ...] | list DIR | revoke DIR NAME"
_ALIKE = 0.8  # from here on a flag may have been meant


@dataclass(frozen=True)
class CommandLine:
    """What was typed: a command, its flags by option name, unparsed; `as_json` is `baton config --json`; `words` are
    those of `baton keys`."""

    command: str
    flags: Mapping[str, str]
    as_json: bool = False
    words: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


class _Once(argparse.Action):
    """Stores what was typed; an option that is typed twice, also under another of its names, says what only if both
    say the same."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, values)
        if before != values:
            raise ConfigError(
                f"--{self.dest} is given twice: {brief(before)} and {brief(values)}; expected one value",
                param=self.dest,
            )
        setattr(namespace, self.dest, values)


def parse(argv: Sequence[str], version: str) -> CommandLine:
    """The command line of `baton`; ConfigError when it is wrong. `--help` and `--version` print and exit."""
    _refuse_unknown_command(argv)
    found, unknown = _parser(version).parse_known_args(argv)
    if unknown:
        raise _unknown(unknown[0], found.command)
    typed = {name: text for name, text in vars(found).items() if name not in ("command", "as_json", "words")}
    return CommandLine(found.command, typed, getattr(found, "as_json", False), tuple(getattr(found, "words", ())))


def _refuse_unknown_command(argv: Sequence[str]) -> None:
    first = argv[0] if argv else ""
    if first and not first.startswith("-") and first not in COMMANDS:
        near = get_close_matches(first[:SHOWN_CHARS], COMMANDS, n=1)
        hint = f", did you mean `baton {near[0]}`?" if near else f"; commands are {', '.join(COMMANDS)}"
        raise ConfigError(f"unknown command {brief(first)}{hint}")


def _unknown(argument: str, command: str) -> ConfigError:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return ConfigError(f"unexpected argument {brief(argument)}; flags of baton {command} start with --")
    if not name.isprintable() or len(name) > SHOWN_CHARS:
        return ConfigError(f"unknown flag {brief(name)} for baton {command}; see baton {command} --help")
    if name.lstrip("-") in NOT_YET:
        return ConfigError(f"{name} is not supported by this version of Baton", param=name)
    options = options_for(command)
    flags = [f"--{each}" for option in options for each in (option.name, *option.aliases)]
    near = get_close_matches(name, flags, n=1, cutoff=_ALIKE)
    if near:
        return ConfigError(f"unknown flag {name} for baton {command}, did you mean {near[0]}?", param=name)
    return ConfigError(f"unknown flag {name} for baton {command}; see baton {command} --help", param=name)


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(shutil.get_terminal_size().columns, 112)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=36, width=width)


def _parser(version: str) -> argparse.ArgumentParser:
    width = max(len(name) for name in COMMANDS)
    listed = "\n".join(f"  baton {name:<{width}}  {what}" for name, what in COMMANDS.items())
    parser = _Parser(
        prog="baton",
        usage="baton COMMAND [flags]",
        description="Serves large language models with prefill and decode on separate workers.",
        epilog=f"commands:\n{listed}\n\n`baton COMMAND --help` explains one; `baton demo` shows it all in ten seconds.",
        formatter_class=_formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"baton {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, what in COMMANDS.items():
        _add_command(commands, name, what)
    return parser


def _add_command(commands: "argparse._SubParsersAction[_Parser]", name: str, what: str) -> None:
    parser = commands.add_parser(
        name,
        prog=f"baton {name}",
        usage=KEYS_USAGE if name == "keys" else f"baton {name} [flags]",
        description=what[0].upper() + what[1:] + ".",
        epilog=f"examples:\n{EXAMPLES[name]}" + ("" if name == "keys" else f"\n\n{_FOOTER}"),
        formatter_class=_formatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_for(name):
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        _add_option(group, option)
    if name == "keys":
        parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    if name == "config":
        parser.add_argument("--json", action="store_true", dest="as_json", help="as JSON instead of a table")


def _add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    help_text = _help(option).replace("%", "%%")
    if option.kind is Kind.SWITCH:
        group.add_argument(
            option.flag, dest=option.name, nargs="?", const="true", metavar="true|false", help=help_text, action=_Once
        )
        return
    group.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=help_text, action=_Once)
    for alias in option.aliases:
        group.add_argument(f"--{alias}", dest=option.name, metavar=option.metavar, help=argparse.SUPPRESS, action=_Once)


def _help(option: Option) -> str:
    text = option.help
    if option.choices:
        text += f": {', '.join(option.choices)}"
    if option.required:
        text += " (required)"
    elif option.default is None:
        text += f" (default: {option.unset})"
    else:
        text += f" (default: {'off' if option.kind is Kind.SWITCH else option.default})"
    if option.aliases:
        text += f" [also {', '.join(f'--{alias}' for alias in option.aliases)}]"
    return text
