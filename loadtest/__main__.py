"""`baton bench` and `baton verify`. `python -m loadtest` is `baton bench`.

baton bench [run]          a load on an endpoint, and its report (bench_command.py)
baton bench sweep          the largest rate at which enough requests meet the objectives (search.py)
baton bench compare A B    what differs between two reports
baton verify URL           whether a server ever answers wrongly (verify/command.py)
"""

import sys
from collections.abc import Sequence

from loadtest.bench_command import EXIT_CONFIG, EXIT_CTRL_C, compare_command, run_command, sweep_command
from loadtest.verify.command import verify_command
from protocol.errors import ConfigError, brief

COMMANDS = {"run": run_command, "sweep": sweep_command, "compare": compare_command}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if any request failed, 2 for wrong arguments or a server that does not start, 130 for Ctrl-C."""
    typed = list(sys.argv[1:] if argv is None else argv)
    tool = typed.pop(0) if typed[:1] in (["bench"], ["verify"]) else "bench"  # what `baton bench` becomes
    word, rest = (typed[0], typed[1:]) if typed and not typed[0].startswith("-") else ("run", typed)
    try:
        if tool == "verify":
            return verify_command(typed)
        if word not in COMMANDS:
            raise ConfigError(f"got {brief(word)}, expected one of {', '.join(COMMANDS)}")
        return COMMANDS[word](rest)
    except ConfigError as error:
        print(f"baton {tool}: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:  # all that was started has ended
        return EXIT_CTRL_C


if __name__ == "__main__":
    raise SystemExit(main())
