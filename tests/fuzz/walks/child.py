"""The process that may die: `python -m tests.fuzz.walks.child KIND SEED`. Reads numbers of schemas, as
tests/fuzz/child.py reads inputs, and answers each with one line: what became of the schema."""

import json
import resource
import signal
import sys
import traceback
from typing import Final

from tests.fuzz.child import MAX_MEMORY
from tests.fuzz.walks.trying import tried

MAX_TOLD: Final = 3000  # characters of a traceback


def main() -> None:
    """Goes on until there is no further number."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has started it ends it
    kind, seed = sys.argv[1], int(sys.argv[2])
    while length := sys.stdin.buffer.read(8):
        number = int(sys.stdin.buffer.read(int.from_bytes(length, "big")))
        sys.stdout.write(answer(kind, seed, number) + "\n")
        sys.stdout.flush()


def answer(kind: str, seed: int, number: int) -> str:
    """The outcome of a schema, as tests/fuzz/fuzzing.py reads it."""
    try:
        return json.dumps({"outcome": json.dumps(tried(kind, seed, number).told())})
    except BaseException as error:  # noqa: BLE001 - what native code raises in a panic is no Exception
        return json.dumps({"wrong": "".join(traceback.format_exception(error))[-MAX_TOLD:]})


if __name__ == "__main__":
    main()
