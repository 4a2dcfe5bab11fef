"""The `baton` command: reads the command line, finds every value, runs one command, returns its exit status.

Exit statuses:

    0   done, or ended by Ctrl-C     1   something failed while starting or serving     2   wrong configuration or model
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console as RichConsole

from deploy import config_report
from deploy.command_line import KEYS_USAGE, CommandLine, parse
from deploy.console import make_console
from deploy.demo import demo
from deploy.keys import keys
from deploy.options import OPTIONS, OTHER_VARIABLES, options_for
from deploy.serve import gateway, serve, worker
from protocol.errors import ConfigError, brief
from runtime.files import Unreadable, read_text
from runtime.installation import baton_version, check_distributions, check_imports
from runtime.layered_config import Config, ConfigFile, parse_file, resolve
from runtime.process_life import EXIT_CONFIG

MAX_FILE_BYTES = 1 << 20
# what `baton demo` starts; environment and file cannot change it
_DEMO_FLAGS = {"prefill": "1", "decode": "1", "unified": "0", "host": "127.0.0.1", "port": "0"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `baton`; returns the exit status."""
    typed = list(sys.argv[1:] if argv is None else argv)

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


def _run(line: CommandLine, config: Config) -> int:
    if line.command == "config":
        if line.as_json:
            print(config_report.as_json(config))
        else:
            # programs read a pipe: do not fold its lines
            width = None if sys.stdout.isatty() else config_report.PIPE_WIDTH
            config_report.print_table(config, RichConsole(highlight=False, width=width))
        return 0

    if line.command == "keys":
        print("\n".join(keys(line.words, KEYS_USAGE)))
        return 0

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
    options, flags = options_for(line.command), line.flags
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
