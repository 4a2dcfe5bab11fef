"""The command line of every process: `python -m ROOM --settings JSON [--status-fd N]`.

The launcher writes it. Users type the `baton` command instead.
"""

import argparse
import os
from collections.abc import Sequence
from typing import TypeVar

from protocol.errors import ConfigError
from runtime.settings import Settings

S = TypeVar("S", bound=Settings)


def read_arguments(kind: type[S], argv: Sequence[str] | None = None) -> tuple[S, int | None]:
    """The settings and the status descriptor (None for a process started by hand) on the command line of this process,
    or in `argv`. ConfigError if the settings are not valid for `kind`."""
    parser = argparse.ArgumentParser(description="One process of Baton; the baton command starts it.")
    parser.add_argument("--settings", required=True, metavar="JSON", help=f"{kind.__name__} as one line of JSON")
    parser.add_argument("--status-fd", type=int, metavar="N", help="descriptor for status events")
    found = parser.parse_args(argv)
    settings = kind.from_json(found.settings)
    if found.status_fd is not None:
        try:
            os.fstat(found.status_fd)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--status-fd: got {found.status_fd}, expected an open descriptor") from error
    return settings, found.status_fd
