"""Runs a program that measures servers: SIGTERM and Ctrl-C end it with everything that it has started."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from bench.sheet import Printed
from loadtest.bench_command import EXIT_CONFIG, EXIT_CTRL_C
from protocol.errors import ConfigError


def run_program(name: str, job: Coroutine[Any, Any, object], sheet: Printed) -> int:
    """Runs `job`, which fills the sheet, and shows the sheet. Returns the exit status: 1 for a fault, 2 for a
    ConfigError, 130 for Ctrl-C."""

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await job

    try:
        uvloop.run(guarded())
    except ConfigError as error:
        print(f"{name}: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except (KeyboardInterrupt, asyncio.CancelledError):  # all that was started has ended
        return EXIT_CTRL_C
    return sheet.end()
