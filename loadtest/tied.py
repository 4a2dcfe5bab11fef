"""Servers that end with whoever measures them, also when that is killed: `python -m loadtest.tied PID COMMAND...`
becomes COMMAND, which the kernel kills when its parent PID ends.

What it does not know: what COMMAND itself has started; Baton's own processes see to that by themselves.
"""

import os
import sys
from collections.abc import Sequence

from runtime.process_life import die_with_parent


def tied(command: Sequence[str]) -> tuple[str, ...]:
    """The command line that this process, on its main thread, starts instead of `command`."""
    return (sys.executable, "-m", "loadtest.tied", str(os.getpid()), *command)


def main() -> None:
    """Never returns."""
    pid, *command = sys.argv[1:]
    die_with_parent(int(pid))
    os.execvp(command[0], command)  # noqa: S606  # it is the command that was typed, word by word


if __name__ == "__main__":
    main()
