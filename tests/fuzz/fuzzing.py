"""Tries inputs on a target in a child process, and notices when the child dies, hangs, is slow, or is wrong.

An input whose outcome is new is kept, so that later inputs are made of it, too.
"""

import hashlib
import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.mutations import SHORT, mutated
from tests.fuzz.targets import seeds_of

PATIENCE_S: Final = 60.0  # for one input, however busy the machine is
START_S: Final = 120.0
SLOW_S: Final = 0.1  # of CPU time, for an input that the gateway reads on its loop
SLOW_LONG_S: Final = 10.0  # for a longer one, which a thread reads
NUM_AGAIN: Final = 3  # times that a slow input is tried before it counts as slow
MAX_POOL: Final = 2000


@dataclass(frozen=True)
class Finding:
    """An input that no client should be able to send. `kind`: died, hangs, slow or wrong."""

    kind: str
    what: str
    raw: bytes

    def store(self, folder: Path) -> Path:
        """Writes the input and what it did."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.kind}-{hashlib.sha256(self.raw).hexdigest()[:12]}"
        path.write_bytes(self.raw)
        path.with_suffix(".txt").write_text(self.what)
        return path


@dataclass(frozen=True)
class Answer:
    """What the child says of one input. `died`: it said nothing."""

    outcome: str = ""
    wrong: str = ""
    cpu_s: float = 0.0
    died: str = ""


class Child:
    """A process that reads inputs, and a new one after each that died. `command` starts it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, raw: bytes) -> Answer:
        """The answer to one input."""
        patience_s = PATIENCE_S
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            patience_s = START_S
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(len(raw).to_bytes(8, "big") + raw)
            process.stdin.flush()
        except BrokenPipeError:
            return Answer(died=self._ended())
        if not select.select([process.stdout], [], [], patience_s)[0]:
            process.kill()
            self._ended()
            return Answer(died="hangs")
        line = process.stdout.readline()
        return Answer(**json.loads(line)) if line else Answer(died=self._ended())

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def _ended(self) -> str:
        """How it ended."""
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdout.close()
        code = process.wait()
        with suppress(BrokenPipeError):  # there may be bytes that it did not read
            process.stdin.close()
        return f"ended with {code}"


@dataclass
class Fuzzing:
    """One target. `worst`: the most CPU time of a short input, and the input."""

    target: str
    random: Random
    command: list[str] = field(default_factory=list)
    num_tried: int = 0
    worst: tuple[float, bytes] = (0.0, b"")

    def findings(self, goes_on: Callable[[], bool]) -> Iterator[Finding]:
        """Findings of different kinds, while `goes_on`. The seeds come first."""
        pool, outcomes, known = list(seeds_of(self.target).values()), set[str](), set[str]()
        waiting = list(pool)
        child = Child(self.command or [sys.executable, "-m", "tests.fuzz.child", self.target])
        try:
            while goes_on():
                raw = waiting.pop() if waiting else mutated(self.random, pool)
                answer, finding = self._tried(child, raw)
                if finding is not None and (key := f"{finding.kind} {answer.outcome or answer.died}") not in known:
                    known.add(key)
                    yield finding
                if answer.outcome not in outcomes and len(pool) < MAX_POOL:
                    outcomes.add(answer.outcome)
                    pool.append(raw)
        finally:
            child.close()

    def _tried(self, child: Child, raw: bytes) -> tuple[Answer, Finding | None]:
        answer = child.read(raw)
        self.num_tried += 1
        limit_s = SLOW_S if len(raw) <= SHORT else SLOW_LONG_S
        for _ in range(NUM_AGAIN):
            if answer.cpu_s > limit_s:
                again = child.read(raw)
                answer = min(answer, again, key=lambda each: each.cpu_s) if not again.died else again
        if len(raw) <= SHORT:
            self.worst = max(self.worst, (answer.cpu_s, raw))

        if answer.died:
            return answer, Finding("hangs" if answer.died == "hangs" else "died", answer.died, raw)
        if answer.wrong:
            return answer, Finding("wrong", answer.wrong, raw)
        if answer.cpu_s > limit_s:
            return answer, Finding("slow", f"{answer.cpu_s:.3f} s of CPU time: {answer.outcome}", raw)
        return answer, None
