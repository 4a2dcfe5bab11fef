"""The `baton` command: reads the command line, finds every value, runs one command, returns its exit status.

argparse is built from the option table; errors suggest the right flag. Exit statuses:

    0   done, or ended by Ctrl-C     1   something failed while starting or serving     2   wrong configuration or model
"""

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console as RichConsole

from deploy import config_report
from deploy.console import make_console
from deploy.demo import demo
from deploy.foreign_flags import FOREIGN, ForeignFlag, detached
from deploy.kernels import kernels
from deploy.keys import keys
from deploy.options import CHECKED, COMMANDS, EXAMPLES, MODEL_FLAG, OPTIONS, OTHER_VARIABLES, RAY_CONFIG, options_for
from deploy.ray.commands import RAY_USAGE, ray_command
from deploy.serve import gateway, serve, worker
from protocol.errors import SHOWN_CHARS, ConfigError, brief
from runtime.files import Unreadable, read_text
from runtime.installation import baton_version, check_distributions, check_imports
from runtime.layered_config import Config, ConfigFile, parse_file, resolve
from runtime.options import LIST_MARK, Kind, Option, as_shown, nearest_name
from runtime.process_life import EXIT_CONFIG

MAX_FILE_BYTES = 1 << 20
# what `baton demo` starts; environment and file cannot change it
_DEMO_FLAGS = {"prefill": "1", "decode": "1", "unified": "0", "host": "127.0.0.1", "port": "0", "drain-timeout": "0"}
_FOOTER = """\
Every flag is also an environment variable (--log-level: BATON_LOG_LEVEL) and a key of the --config file
(log-level = "debug"). A flag wins over the environment, the environment over the file; `baton config` shows
the outcome."""
KERNELS_USAGE = "baton kernels build [HEAD_SIZE ...]"
KEYS_USAGE = "baton keys new DIR [NAME ...] | list DIR | revoke DIR NAME"
_PARSED = {**COMMANDS, RAY_CONFIG: "write the file that `serve deploy` takes, to run this on a Ray cluster"}
_USAGE_OF_WORDS = {"kernels": KERNELS_USAGE, "keys": KEYS_USAGE, "ray": RAY_USAGE}  # commands that take words
LOAD_TOOLS = ("bench", "verify")
_ALIKE = 0.8  # similarity of names from which a flag is suggested


@dataclass(frozen=True)
class CommandLine:
    """The typed command. `flags` maps option names to unparsed values, `spelled` to the flags as typed (perhaps an
    alias). `as_json` is `--json`; `words` are the arguments of a command that takes words."""

    command: str
    flags: Mapping[str, str]
    as_json: bool = False
    words: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `baton`; returns the exit status."""
    typed = list(sys.argv[1:] if argv is None else argv)
    if typed[:1] == ["help"] and typed[1:2] and typed[1] in LOAD_TOOLS:
        _become(typed[1], ["--help"])
    if typed[:1] and typed[0] in LOAD_TOOLS:
        _become(typed[0], typed[1:])

    try:
        line = parse(typed or ["--help"], baton_version())
        config = find_config(line, os.environ)
        try:
            return _run(line, config)
        except ConfigError as error:
            raise config.as_written(error) from error
    except ConfigError as error:
        print(f"baton: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:  # outside StopSignal, which handles it while a command runs
        return 0
    except BrokenPipeError:  # `baton config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _become(tool: str, words: Sequence[str]) -> NoReturn:
    """Replaces this process by a tool of loadtest/, which has flags of its own. Nothing of it is imported to serve."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "loadtest", tool, *words])  # noqa: S606  # the user's own words


def _become_check(config: Config, *, as_json: bool) -> NoReturn:
    """Replaces this process by deploy/check.py, which imports torch."""
    asked = json.dumps({name.replace("-", "_"): config[name] for name in CHECKED})
    sys.stdout.flush()
    words = [asked, *(["json"] if as_json else [])]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "deploy.check", *words])  # noqa: S606  # options, checked


def _run(line: CommandLine, config: Config) -> int:
    if line.command == "config":
        if line.as_json:
            print(config_report.as_json(config))
        else:
            # programs read a pipe: do not fold its lines
            width = None if sys.stdout.isatty() else config_report.PIPE_WIDTH
            config_report.print_table(config, RichConsole(highlight=False, width=width))
        return 0

    if line.command == "check":
        _become_check(config, as_json=line.as_json)

    if line.command == "keys":
        print("\n".join(keys(line.words, KEYS_USAGE)))
        return 0

    if line.command == "kernels":
        for told in kernels(line.words, KERNELS_USAGE):
            print(told, flush=True)
        return 0

    if line.command == "ray":
        return ray_command(line.words, config)

    check_imports()
    check_distributions()
    commands = {"serve": serve, "gateway": gateway, "worker": worker, "demo": demo}
    console = make_console(config["log-level"])
    try:
        return commands[line.command](config, console)
    finally:
        console.close()


def find_config(line: CommandLine, environment: Mapping[str, str]) -> Config:
    """Finds the value and origin of every option of the command."""
    options, flags = options_for(RAY_CONFIG if line.command == "ray" else line.command), line.flags
    if line.command == "demo":
        options, flags = (*options_for("serve"), *options), {**flags, **_DEMO_FLAGS}
    path = flags.get("config") or environment.get("BATON_CONFIG")
    file = read_file(path) if path else None
    return resolve(options, OPTIONS, flags, environment, file, OTHER_VARIABLES, line.spelled)


def read_file(path: str) -> ConfigFile:
    """Reads the configuration file at `path`; raises ConfigError if it cannot be read."""
    try:
        text = read_text(Path(path).expanduser(), MAX_FILE_BYTES, "utf-8-sig")
    except (Unreadable, RuntimeError) as error:  # RuntimeError: `~name` of an unknown user
        raise ConfigError(f"--config: cannot read {brief(path)}: {error}", param="config") from error
    return parse_file(path, text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Allows no abbreviation. allow_abbrev is not enough: argparse would still read `-p` as `-pp`."""
        return []


class _Once(argparse.Action):
    """Stores the typed value. An option typed twice, also under an alias, must have the same value both times."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        _keep(namespace, self.dest, LIST_MARK.join(values) if isinstance(values, list) else values)
        namespace.spelled = {**getattr(namespace, "spelled", {}), self.dest: option_string or f"--{self.dest}"}


class _Foreign(argparse.Action):
    """A flag of another server. Accepts a value that changes nothing; refuses others. `const` is the ForeignFlag."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(self.const, ForeignFlag)
        value = values if isinstance(values, str) else None
        if wrong := self.const.refusal(option_string or "", value):
            raise ConfigError(wrong, param=option_string)


def parse(argv: Sequence[str], version: str) -> CommandLine:
    """Parses the command line; raises ConfigError if it is wrong. `--help` and `--version` print and exit."""
    argv = _spelled_out(argv)
    _refuse_unknown_command(argv)
    if argv[:2] == RAY_CONFIG.split():  # the one word of `baton ray` that takes flags
        argv = [RAY_CONFIG, *argv[2:]]
    known, rest = _parser(version).parse_known_args(argv)
    has_model = _has_model(known.command)
    for position, argument in enumerate(rest):
        if argument.startswith("-") or position > 0 or not has_model:
            raise _unknown(argument, known.command)
        _keep(known, MODEL_FLAG, argument)

    typed = dict(vars(known))
    command, as_json, words = typed.pop("command"), typed.pop("as_json", False), tuple(typed.pop("words", ()))
    spelled = typed.pop("spelled", {})
    if command == RAY_CONFIG:
        command, words = command.split()[0], tuple(command.split()[1:])
    return CommandLine(command, typed, as_json, words, spelled)


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """`baton version` is `baton --version`, `baton help COMMAND` is `baton COMMAND --help`, `-tp2` is `-tp 2`."""
    if argv and argv[0] == "version":
        return ["--version", *argv[1:]]
    if argv and argv[0] == "help":
        return [*argv[1:2], "--help"]
    return [part for argument in argv for part in detached(argument)]


def _keep(namespace: argparse.Namespace, name: str, value: str) -> None:
    before = getattr(namespace, name, value)
    if before != value:
        raise ConfigError(
            f"--{name} is given twice: {brief(before)} and {brief(value)}; expected one value", param=name
        )
    setattr(namespace, name, value)


def _has_model(command: str) -> bool:
    return any(option.name == MODEL_FLAG for option in options_for(command))


def _refuse_unknown_command(argv: Sequence[str]) -> None:
    first = argv[0] if argv else ""
    if first.startswith("-") and first not in ("-h", "--help", "--version"):
        raise _without_command(argv)

    if first and not first.startswith("-") and first not in COMMANDS:
        near = nearest_name(first, COMMANDS)
        hint = f", did you mean `baton {near}`?" if near else f"; commands are {', '.join(COMMANDS)}"
        raise ConfigError(f"unknown command {brief(first)}{hint}")


def _without_command(argv: Sequence[str]) -> ConfigError:
    """The error for `baton --prefill 2`. It suggests the command typed later, or else a command that has the flag."""
    name = argv[0].partition("=")[0]
    owner = next((command for command in COMMANDS if name in _flags(command)), "serve")
    command = next((argument for argument in argv if argument in COMMANDS), owner)
    meant = shlex.join(["baton", command, *(argument for argument in argv if argument != command)])
    shown = f"`{meant}`" if meant.isprintable() and len(meant) <= SHOWN_CHARS else "`baton COMMAND [flags]`"
    return ConfigError(f"a command comes before the flags: {shown}; commands are {', '.join(COMMANDS)}")


def _unknown(argument: str, command: str) -> ConfigError:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return ConfigError(f"unexpected argument {brief(argument)}; flags of baton {command} start with --")
    what = f"unknown flag {name} for baton {command}"
    if not name.isprintable() or len(name) > SHOWN_CHARS:
        return ConfigError(f"unknown flag {brief(name)} for baton {command}; see baton {command} --help")
    if elsewhere := [f"baton {other}" for other in _PARSED if other != "config" and name in _flags(other)]:
        return ConfigError(f"{what}; it belongs to {', '.join(elsewhere)}", param=name)
    switches = {option.flag for option in options_for(command) if option.kind is Kind.SWITCH}
    if (switch := name.replace("--no-", "--", 1)) in switches:
        return ConfigError(f"{what}, did you mean `{switch} false`?", param=name)
    if near := nearest_name(name, _flags(command), _ALIKE):
        return ConfigError(f"{what}, did you mean {near}?", param=name)
    return ConfigError(f"{what}; see baton {command} --help", param=name)


def _flags(command: str) -> list[str]:
    """All flags of a command, aliases included."""
    return [f"--{name}" for option in options_for(command) for name in (option.name, *option.aliases)]


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
        epilog=f"commands:\n{listed}\n\n`baton COMMAND --help` explains one; `baton demo` shows it all.",
        formatter_class=_formatter,
        allow_abbrev=False,
    )

    parser.add_argument("--version", action="version", version=f"baton {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, what in _PARSED.items():
        _add_command(commands, name, what)
    return parser


def _add_command(commands: "argparse._SubParsersAction[_Parser]", name: str, what: str) -> None:
    parser = commands.add_parser(
        name,
        prog=f"baton {name}",
        usage=_USAGE_OF_WORDS.get(name) or f"baton {name}{' [MODEL]' if _has_model(name) else ''} [flags]",
        description=what[0].upper() + what[1:] + ".",
        epilog=f"examples:\n{EXAMPLES[name.partition(' ')[0]]}" + ("" if name in _USAGE_OF_WORDS else f"\n\n{_FOOTER}"),
        formatter_class=_formatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )

    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_for(name):
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        _add_option(group, option)

    if name in _USAGE_OF_WORDS:
        parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    else:
        _add_foreign(parser, name)
    if name in ("check", "config"):
        parser.add_argument("--json", action="store_true", dest="as_json", help="as JSON instead of text")


def _add_option(group: argparse._ArgumentGroup, option: Option) -> None:
    about = _help(option).replace("%", "%%")
    for name, help_text in ((option.name, about), *((alias, argparse.SUPPRESS) for alias in option.aliases)):
        common: dict[str, Any] = {"dest": option.name, "help": help_text, "action": _Once}
        if option.kind is Kind.SWITCH:
            group.add_argument(f"--{name}", nargs="?", const="true", metavar="true|false", **common)
        else:
            nargs = "+" if option.kind is Kind.LIST else None
            group.add_argument(f"--{name}", nargs=nargs, metavar=option.placeholder, **common)


def _add_foreign(parser: argparse.ArgumentParser, command: str) -> None:
    own = _flags(command)
    for flag in FOREIGN:
        names = [name for name in flag.names if name not in own]
        # refuse a flag without any accepted value before argparse asks for its value
        nargs: int | str | None = 0 if flag.alone else None if flag.taken else "?"
        if names:
            parser.add_argument(
                *names, nargs=nargs, const=flag, dest=argparse.SUPPRESS, help=argparse.SUPPRESS, action=_Foreign
            )


def _help(option: Option) -> str:
    text = option.help
    if option.choices:
        text += f": {option.expected.removeprefix('one of ') or ', '.join(option.choices)}"
    if option.required:
        text += " (required)"
    elif option.default is None:
        text += f" (default: {option.unset})"
    else:
        text += f" (default: {as_shown(option.default)})"
    if option.aliases:
        text += f" [also {', '.join(f'--{alias}' for alias in option.aliases)}]"
    return text
