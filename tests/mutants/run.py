"""Applies each sabotage to a copy of the tree and runs what must notice it. See mutants.py.

The copy is of every file that git does not ignore, as it is now. A mutant that no longer applies is as bad as one that
survives: what it sabotaged may have moved to where nothing looks.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import ANY, SEEDS, Mutant
from tests.processes import python_path

ROOT = Path(__file__).resolve().parents[2]
KILLER_S = 120.0  # a killer that takes longer hangs: noticed as well
WORLDS_S = 600.0  # the same for worlds of the handoff, of which there are more
NOT_COPIED = ("models/", "docs/", "deploy/", "loadtest/")  # no killer needs them


@dataclass(frozen=True)
class Verdict:
    """`killer` is who noticed it; None when nobody did. `trouble` says why nothing could be found out."""

    mutant: Mutant
    killer: str | None
    trouble: str = ""

    @property
    def line(self) -> str:
        """For the table."""
        end = self.trouble or (f"killed by {self.killer}" if self.killer else "SURVIVES")
        return f"{self.mutant.name:<82} {end}"


class Copy:
    """A copy of the tree in `folder`, in which one mutant at a time is applied."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder = folder
        self._clock = 1_000_000_000  # of changed files: each change looks newer to Python's cache of compiled files
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in listed.splitlines():
            if not name.startswith(NOT_COPIED) and (source / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, folder / name)

    def judge(self, mutant: Mutant) -> Verdict:
        """Applies it, runs its killers until one notices, and undoes it."""
        path = self.folder / mutant.file
        text = path.read_text() if path.is_file() else ""
        if text.count(mutant.old) != 1:
            return Verdict(mutant, None, f"NO LONGER APPLIES: {text.count(mutant.old)} times in {mutant.file}")
        self._write(path, text.replace(mutant.old, mutant.new))
        try:
            return self._run_killers(mutant)
        finally:
            self._write(path, text)

    def explore(self, strategies: Sequence[str], detect: bool = False) -> tuple[int, str]:
        """Exit status and output of ten seeds under each of `strategies`."""
        command = ["tests.explore", "--seeds", str(SEEDS), "--jobs", "1", "--strategies", ",".join(strategies)]
        return self._run([*command, *(["--detect"] if detect else [])])

    def explore_handoff(self, worlds: int) -> tuple[int, str]:
        """Exit status and output of the first `worlds` seeds."""
        return self._run(["tests.explore_handoff", "--seeds", str(worlds), "--jobs", "1"], WORLDS_S)

    def pytest(self, tests: Sequence[str]) -> tuple[int, str]:
        """Exit status and output of `tests`."""
        return self._run(["pytest", "-q", "-x", "-n", "0", "--no-header", "-p", "no:cacheprovider", *tests])

    def _run_killers(self, mutant: Mutant) -> Verdict:
        if mutant.strategies:
            status, output = self.explore(mutant.strategies, mutant.detect)
            if status == 1 and (found := re.search(r"^seed (\d+), strategy ([\w-]+): (.*)", output, re.MULTILINE)):
                who = f"the race detector, {found[2]}" if found[3].startswith("race: ") else found[2]
                return Verdict(mutant, f"{who}, seed {found[1]}: {_short(found[3])}")
            if status != 0:
                return Verdict(mutant, None, f"BROKEN: {output[-600:]}")
        if mutant.worlds:
            status, output = self.explore_handoff(mutant.worlds)
            if status == 1 and (found := re.search(r"^seed (\d+), at [\d.]+: (.*)", output, re.MULTILINE)):
                return Verdict(mutant, f"world {found[1]}: {_short(found[2])}")
            if status != 0:
                return Verdict(mutant, None, f"BROKEN: {output[-600:]}")
        if mutant.tests:
            status, output = self.pytest(mutant.tests)
            if status == 1 and (found := re.search(r"^FAILED (\S+)", output, re.MULTILINE)):
                return Verdict(mutant, found[1])
            if status != 0:
                return Verdict(mutant, None, f"BROKEN: {output[-600:]}")
        return Verdict(mutant, None)

    def _run(self, module: Sequence[str], timeout_s: float = KILLER_S) -> tuple[int, str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(self.folder)}
        command = [sys.executable, "-m", *module]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return 1, "seed ?, strategy ?: hangs\nFAILED hangs"
        return done.returncode, done.stdout + done.stderr

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        self._clock += 10
        os.utime(path, (self._clock, self._clock))


def baseline(copy: Copy, mutants: Sequence[Mutant]) -> str:
    """What the killers say without any sabotage: nothing, or their word is worth nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    detecting = sorted({strategy for mutant in mutants if mutant.detect for strategy in mutant.strategies})
    explored = [copy.explore(ANY), *([copy.explore(detecting, detect=True)] if detecting else [])]
    for status, output in (*explored, *([copy.pytest(tests)] if tests else [])):
        if status != 0:
            return output[-3000:]
    worlds = max((mutant.worlds for mutant in mutants), default=0)
    status, output = copy.explore_handoff(worlds) if worlds else (0, "")
    return output[-3000:] if status != 0 else ""


def judge_all(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> list[Verdict]:
    """Every mutant, shared among `copies`; a line is written for each as it is judged."""
    waiting = list(reversed(mutants))
    lock = threading.Lock()
    verdicts: list[Verdict] = []

    def work(copy: Copy) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                mutant = waiting.pop()
            verdict = copy.judge(mutant)
            with lock:
                verdicts.append(verdict)
                sys.stdout.write(verdict.line + "\n")
                sys.stdout.flush()

    workers = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return verdicts


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "..."
