"""Servers that end with the process that measures them, even if it is killed.

`python -m loadtest.tied PID COMMAND...` becomes COMMAND, which the kernel kills when its parent PID ends. What COMMAND
has started must end on its own, as Baton's processes do.
"""

import os
import sys
from collections.abc import Sequence

from runtime.process_life import die_with_parent


def tied(command: Sequence[str]) -> tuple[str, ...]:
    """The command line to start instead of `command`, from the main thread of this process."""
    return (sys.executable, "-m", "loadtest.tied", str(os.getpid()), *command)


def main() -> None:
    """Replaces this process by the command."""
    pid, *command = sys.argv[1:]
    die_with_parent(int(pid))
    os.execvp(command[0], command)  # noqa: S606  # the command that the caller typed


if __name__ == "__main__":
    main()
