"""`python -m bench.memory`: what prefix caches save.

    system   many requests with one system prompt, with the prefix cache and without it
    trace    hit rate and TTFT on a trace, beside vLLM

The last line of output is one JSON object.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from bench.memory import replay, shared
from bench.memory.part import Setting
from bench.sheet import Printed
from loadtest.__main__ import ROUNDS, guarded_run
from loadtest.bench_command import EXIT_CONFIG
from loadtest.peer import VARIABLE
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock

PARTS: Final[Mapping[str, Callable[[Setting], Awaitable[None]]]] = {
    "system": shared.measure,
    "trace": replay.measure,
}


async def measure_all(names: Sequence[str], setting: Setting) -> None:
    """Each part in turn."""
    for name in names:
        start = setting.clock.now()
        await PARTS[name](setting)
        setting.sheet.note(f"{name}: {setting.clock.now() - start:.0f} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for wrong arguments or a server that does not start; 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory",
        description=__doc__.partition("\n")[0],
        epilog=f"trace takes its peer from {VARIABLE}, the path of a vllm executable.",
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="this part alone; may be given again")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="one small round; shows that it works, no more")
    asked = parser.parse_args(argv)
    if asked.rounds < 1:
        parser.error(f"--rounds: got {asked.rounds}, expected at least 1")

    sheet = Printed("memory")
    setting = Setting(MonotonicClock(), sheet, 1 if asked.quick else asked.rounds, asked.quick)
    try:
        guarded_run(measure_all(asked.part or list(PARTS), setting))
    except ConfigError as error:
        print(f"bench.memory: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except (KeyboardInterrupt, asyncio.CancelledError):  # all that was started has ended
        return 130
    return sheet.end()


if __name__ == "__main__":
    raise SystemExit(main())
