"""The process that may die: `python -m tests.fuzz.child TARGET`. Reads inputs, answers each with one line of JSON."""

import json
import resource
import sys
import time
import traceback
from typing import Final

from tests.fuzz.targets import outcome_of, warm_up

MAX_MEMORY: Final = 6 * 2**30  # bytes of address space: native code that wants more ends the process
MAX_TOLD: Final = 3000  # characters of a traceback


def main() -> None:
    """Goes on until there is no further input. An input is its length, 8 bytes, then its bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warm_up()
    while length := sys.stdin.buffer.read(8):
        raw = sys.stdin.buffer.read(int.from_bytes(length, "big"))
        began = time.process_time()
        outcome, wrong = "", ""
        try:
            outcome = outcome_of(sys.argv[1], raw)
        except BaseException as error:  # noqa: BLE001 - what native code raises in a panic is no Exception
            outcome = f"{type(error).__name__} at {traceback.extract_tb(error.__traceback__)[-1].lineno}"
            wrong = "".join(traceback.format_exception(error))[-MAX_TOLD:]
        cpu_s = time.process_time() - began
        sys.stdout.write(json.dumps({"outcome": outcome, "wrong": wrong, "cpu_s": cpu_s}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
