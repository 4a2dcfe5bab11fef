"""`python -m bench.memory`: what growing contexts and prefix caches save, and what they cost.

    chats    six chats without max_tokens in a small pool            system   many requests with one system prompt
    pool     a decode pool for a quarter of the load                 chat     a chat of ten turns
    trace    hit rate and TTFT on a trace, beside vLLM               served, host   the cost when nothing is shared

The last line of output is one JSON object.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from bench.memory import chats, cost, pool, replay, shared
from bench.memory.part import Setting
from loadtest.__main__ import EXIT_CONFIG, ROUNDS, WIDTH, guarded_run
from loadtest.peer import VARIABLE
from protocol.errors import ConfigError
from runtime.clock import MonotonicClock

PARTS: Final[Mapping[str, Callable[[Setting], Awaitable[dict[str, Any]]]]] = {
    "chats": chats.measure,
    "pool": pool.measure,
    "system": shared.measure_system_prompt,
    "chat": shared.measure_chat,
    "trace": replay.measure,
    "served": cost.measure_served,
    "host": cost.measure_host,
}


async def measure_all(names: Sequence[str], setting: Setting) -> dict[str, Any]:
    """The results of the parts, by name."""
    found: dict[str, Any] = {}
    for name in names:
        start = setting.clock.now()
        setting.console.print(f"\n{name}")
        found[name] = await PARTS[name](setting)
        setting.console.print(f"{name}: {setting.clock.now() - start:.0f} s")
    return found


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
    parser.add_argument("--markdown", action="store_true", help="tables that can be pasted into a page")
    asked = parser.parse_args(argv)
    if asked.rounds < 1:
        parser.error(f"--rounds: got {asked.rounds}, expected at least 1")

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    rounds = 1 if asked.quick else asked.rounds
    setting = Setting(MonotonicClock(), console, rounds, asked.quick, asked.markdown)
    try:
        found = guarded_run(measure_all(asked.part or list(PARTS), setting))
    except ConfigError as error:
        print(f"bench.memory: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except (KeyboardInterrupt, asyncio.CancelledError):  # all that was started has ended
        return 130
    print(json.dumps({"bench": "memory", "rounds": rounds, "quick": asked.quick, **found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
