"""The gateway's end of the process that tries grammars: starts it, gives it jobs, and replaces it when it dies.

    none --start, or a job--> starting --ready--> idle --job--> busy --answer--> idle
     ^                            |                 |             |
     '--- it has ended, or was silent for WAIT_S and is killed ---'

A death by the job itself is the grammar's fault. A death by a signal from outside is not: a second process gets the
job.
"""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from gateway.generation.grammars.refused import GrammarRefused, place_of
from gateway.generation.grammars.trial_frames import HEAD_BYTES, MAX_WORK_S, framed
from gateway.words.request import Grammar
from protocol.errors import Overloaded
from runtime.log import get_log
from runtime.process_life import LAUNCHER_PID

WAIT_S: Final = 30.0  # for an answer. A job has used up MAX_WORK_S by then, unless the machine stands still
PROJECT: Final = Path(__file__).resolve().parents[3]
NOT_THE_JOB: Final = frozenset({0, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP})  # 0: it was too large for another
FAULT: Final = "cannot be followed"
log = get_log("gateway.grammars")


def trial_command(folder: Path, num_tokens: int) -> tuple[str, ...]:
    """The command of the process for the model of a folder."""
    return (sys.executable, "-m", "gateway.generation.grammars.trial_process", str(folder.absolute()), str(num_tokens))


class TrialChild:
    """Of one gateway. One thread calls `start` and `check`, always the same: the process dies with the thread that has
    started it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False
        self.num_starts = 0

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        return None if self._process is None else self._process.pid

    def prepare(self) -> None:
        """Starts a process for the next job. If none gets ready, it only says so: the job tries again."""
        try:
            self.start()
        except Overloaded as error:
            if not self._is_closing:
                log.warning("no process to try grammars", why=error.message)

    def start(self) -> None:
        """Starts a process, unless there is one, and returns when it is ready. Overloaded if it does not get ready."""
        if self._is_closing:
            raise Overloaded("the gateway is stopping")
        if self._process is None:
            self._process = self._spawn()
            self.num_starts += 1
            os.set_blocking(self._pipes[0], False)  # a job may be larger than the pipe: see _await
            if self._hear() is None:
                raise Overloaded(f"the process that tries grammars has ended at its start ({self._bury()}); try again")

    def check(self, asked: Grammar) -> str | GrammarRefused:
        """The grammar's text, or why it cannot be followed. Overloaded if no process has the time to say so."""
        job = framed(json.dumps(asdict(asked)).encode())
        for _ in range(2):
            told = self._ask(job)
            if told is not None:
                outcome = json.loads(told)
                if "refused" in outcome:
                    return GrammarRefused(outcome["refused"], tuple(outcome["at"]))
                return str(outcome["text"])

            died_of = self._bury()
            if died_of not in NOT_THE_JOB:
                log.warning("a grammar has ended the process that tries them", kind=asked.kind, signal=died_of)
                return GrammarRefused(f"{FAULT}: {_what_it_did(died_of)}", place_of(asked))
        if died_of:
            raise Overloaded("two processes that tried the grammar were killed; try again")
        return GrammarRefused(f"{FAULT}: two processes that tried it have ended", place_of(asked))

    def stop(self) -> None:
        """Kills the process and starts no other. Any thread may call it; the one that calls `check` then closes."""
        self._is_closing = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._bury()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        """Starts the process. Overloaded if the system cannot.

        It inherits this thread's signal mask, which holds SIGINT back, so Ctrl-C never ends it: the gateway does."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=PROJECT,
                env={**os.environ, LAUNCHER_PID: str(os.getpid())},
            )
        except OSError as error:  # out of memory or descriptors
            reason = error.strerror or type(error).__name__
            raise Overloaded(f"the process that tries grammars cannot be started: {reason}; try again") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _ask(self, job: bytes) -> bytes | None:
        """The answer of the process to a job; None if the process has ended."""
        self.start()
        try:
            self._write(job)
        except BrokenPipeError:
            return None
        return self._hear()

    def _hear(self) -> bytes | None:
        """The next frame of the process; None if it has ended."""
        head = self._read(HEAD_BYTES)
        return None if head is None else self._read(int.from_bytes(head, "big"))

    def _write(self, data: bytes) -> None:
        fd, left = self._pipes[0], memoryview(data)
        while left:
            self._await(fd, select.POLLOUT)
            left = left[os.write(fd, left) :]

    def _read(self, size: int) -> bytes | None:
        fd, parts = self._pipes[1], bytearray()
        while len(parts) < size:
            self._await(fd, select.POLLIN)
            part = os.read(fd, size - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _await(self, fd: int, event: int) -> None:
        """Returns when the pipe is ready, or broken. Overloaded, with the process killed, if it is not in time."""
        poller = select.poll()
        poller.register(fd, event)
        if not poller.poll(WAIT_S * 1e3):
            self.close()
            raise Overloaded(f"the process that tries grammars was silent for {WAIT_S:g} s; try again")

    @property
    def _pipes(self) -> tuple[int, int]:
        """The descriptors of the pipes for jobs and for answers."""
        assert self._process is not None, "it has started"
        jobs, answers = self._process.stdin, self._process.stdout
        assert jobs is not None and answers is not None, "both are pipes"
        return jobs.fileno(), answers.fileno()

    def _bury(self) -> int:
        """Forgets a process that has ended, or was killed. Returns the signal that ended it; 0 for none."""
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None and process.stdout is not None, "it has started"
        process.stdin.close()
        process.stdout.close()
        return max(0, -process.wait())


def _what_it_did(died_of: int) -> str:
    if died_of == signal.SIGPROF:
        return f"it takes more than {MAX_WORK_S:g} s of work to try"
    return f"it ended the process that tried it ({signal.Signals(died_of).name})"
