"""A child process that is told what to do in lines of JSON, and answers in lines of JSON. It dies with this one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadtest.tied import tied
from protocol.errors import BatonError


class Child:
    """Runs `command` with `variables` added to the environment."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None, cwd: str = ".") -> None:
        self._words = " ".join(command)
        environment = {**os.environ, **(variables or {})}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(tied(command), stdin=pipe, stdout=pipe, text=True, env=environment, cwd=cwd)

    def tell(self, **command: Any) -> None:
        """Sends a command."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The next answer. BatonError if the process has ended."""
        assert self._process.stdout is not None, "it is a pipe"
        if not (line := self._process.stdout.readline()):
            raise BatonError(f"{self._words}: the process has ended; its error is above")
        return json.loads(line)

    def ask(self, **command: Any) -> Any:
        """Sends a command, and returns the answer."""
        self.tell(**command)
        return self.answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def answer_all(do: Callable[[dict[str, Any]], Any]) -> None:
    """In the child: answers each command by what `do` returns for it, until there are no more. What libraries print
    goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        print(json.dumps(do(json.loads(line))), file=answers, flush=True)
