"""Tries grammars for a gateway, because it may die of one: `python -m THIS_MODULE FOLDER NUM_TOKENS`.

    gateway --a job--> this process --its text, or what is wrong--> gateway      frames of JSON: trial_frames.py

The kernel bounds what one job may take: processor time by a timer whose signal ends the process, memory by RLIMIT_AS.
Where the machine's memory is short, it ends this process before any other. The process ends when its input does. After
a job that left it large it ends, too, with status 0. An empty frame says that it is ready.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import BinaryIO, Final

from gateway.generation.grammars.refused import GrammarRefused, place_of
from gateway.generation.grammars.trial_frames import MAX_WORK_S, framed, read_frame
from gateway.generation.grammars.trials import Trials
from gateway.words.request import Grammar
from protocol.errors import GrammarFault
from runtime.clock import ThreadWorkClock
from runtime.log import get_log, start_log
from runtime.native_stack import STACK_BYTES, with_stack
from runtime.process_life import die_with_parent
from runtime.vocabulary import Vocabulary, load_vocabulary

MAX_MEMORY_BYTES: Final = 1 << 30  # that one job may add
LARGE_BYTES: Final = 256 << 20  # that the process may have grown by; then another one takes its place
Try = Callable[[Grammar], str | GrammarRefused]
log = get_log("gateway.grammars")


def answer(job: bytes, tried: Try) -> bytes:
    """What the gateway gets for a job."""
    asked = Grammar(**json.loads(job))
    try:
        outcome = tried(asked)
    except MemoryError:
        most = MAX_MEMORY_BYTES >> 20
        outcome = GrammarRefused(f"cannot be followed: it takes more than {most} MiB to try", place_of(asked))
    told = {"text": outcome} if isinstance(outcome, str) else {"refused": outcome.what, "at": outcome.at}
    return json.dumps(told).encode()


def serve(tried: Try, jobs: BinaryIO, answers: BinaryIO) -> None:
    """Takes job after job. Returns at the end of `jobs`, or when the process has grown too large."""
    least = _size_bytes("VmRSS")
    _write(answers, b"")
    while (job := read_frame(jobs)) is not None:
        signal.setitimer(signal.ITIMER_PROF, MAX_WORK_S)
        outcome = answer(job, tried)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, outcome)
        if _size_bytes("VmRSS") > least + LARGE_BYTES:
            return


def _write(stream: BinaryIO, body: bytes) -> None:
    stream.write(framed(body))
    stream.flush()


def _size_bytes(name: str) -> int:
    """A size of this process, by its name in the kernel's account."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def tries_of(folder: Path, num_tokens: int) -> Try:
    """Tries grammars for the model of a folder. Without the bytes of its tokens it refuses all, with the reason."""
    try:
        vocabulary: Vocabulary = load_vocabulary(folder, num_tokens)
    except GrammarFault as fault:
        reason = fault.message
        return lambda asked: GrammarRefused(reason, place_of(asked))
    return Trials(vocabulary, ThreadWorkClock()).of


def end_first(score: Path) -> None:
    """Has the kernel end this process before any other where memory is short. A container may not allow it."""
    try:
        score.write_text("1000")
    except OSError as error:
        log.warning("trials of grammars are not ended first", why=f"{score} cannot be written: {error.strerror}")


def main(argv: list[str]) -> int:
    """Serves one gateway. Exit status 0."""
    die_with_parent()
    folder, num_tokens = Path(argv[0]), int(argv[1])
    start_log("grammar-trials")
    end_first(Path("/proc/self/oom_score_adj"))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # native code that prints does not disturb the answers
    tried = tries_of(folder, num_tokens)

    most = _size_bytes("VmSize") + STACK_BYTES + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    thread = Thread(target=serve, args=(tried, sys.stdin.buffer, answers))
    with_stack(thread.start)
    thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
