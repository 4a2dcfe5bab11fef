"""Applies each mutant to a copy of the tree and runs what must notice it. See mutants.py.

The copy is of every file that git does not ignore, as it is now. A mutant that no longer applies is as bad as one that
survives: what it changed may have moved to where nothing looks.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tests.mutants import pattern
from tests.mutants.mutant import ANY, SEEDS, Mutant
from tests.processes import python_path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 3600.0  # for killers without any mutant
KILLER_S = 120.0  # a killer in a changed tree may take at least so long
NOT_CHANGED = ("models/", "loadtest/", "bench/")
DATA_KB = 8 << 20  # memory that a killer may take: a changed loop may fill a list for ever


def sources(root: Path) -> dict[str, str]:
    """The text of every Python file of the product and the tests in `root`, by its path."""
    names = [name for name in _files(root) if name.endswith(".py") and not name.startswith(NOT_CHANGED)]
    return {name: (root / name).read_text() for name in names}


def mutated(mutant: Mutant, texts: Mapping[str, str]) -> tuple[str, str]:
    """The file that `mutant` changes and its text from then on. LookupError unless it applies exactly once."""
    where, _, function = mutant.function.rpartition(" ")
    old, new = pattern.parse(mutant.old, mutant.new)

    found = []
    for name, text in texts.items():
        if name.startswith(where) and _may_define(text, function):  # parsing all files takes seconds
            tree = ast.parse(text)
            places = [place for scope in pattern.definitions(tree, function) for place in pattern.find(scope, old)]
            found += [(name, tree, place) for place in places]

    if len(found) != 1:
        fits = f"fits {len(found)} times {[name for name, *_ in found]}" if found else "fits nowhere"
        raise LookupError(f"{mutant.old!r} {fits} in functions named {mutant.function}")

    name, tree, place = found[0]
    place.put(new)
    return name, ast.unparse(tree)


class Named(Protocol):
    """A mutant of any kind."""

    @property
    def name(self) -> str:
        """One line."""

    @property
    def why(self) -> str:
        """A diff and its place, for a mutant that survives."""


Some = TypeVar("Some", bound=Named)


@dataclass(frozen=True)
class Verdict:
    """`killer` is who noticed it; None when nobody did. `trouble` says why nothing could be found out."""

    mutant: Named
    killer: str | None
    trouble: str = ""

    @property
    def line(self) -> str:
        """For the table."""
        end = self.trouble or (f"killed by {self.killer}" if self.killer else "SURVIVES")
        return f"{self.mutant.name:<82} {end}"


class Copy:
    """A copy of the tree in `folder`, in which one mutant at a time is applied.

    A killer that takes longer than `limit_s` hangs: that is noticed as well.
    """

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.folder = folder
        self.limit_s = PATIENCE_S
        self._clock = 1_000_000_000  # of changed files: each change looks newer to Python's cache of compiled files
        self.texts = sources(source)
        for name in _files(source):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, folder / name)

    def judge(self, mutant: Mutant) -> Verdict:
        """Applies it, runs its killers until one notices, and undoes it."""
        try:
            name, text = mutated(mutant, self.texts)
        except LookupError as error:
            return Verdict(mutant, None, f"NO LONGER APPLIES: {error}")
        with self.changed(name, text):
            return self._run_killers(mutant)

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """The file `name` has another text meanwhile."""
        self._write(name, text)
        try:
            yield
        finally:
            self._write(name, self.texts[name])

    def rewrite(self, names: Sequence[str]) -> None:
        """Writes the files as mutants leave them, from their syntax trees, but unchanged."""
        for name in names:
            self._write(name, ast.unparse(ast.parse(self.texts[name])))

    def explore(self, strategies: Sequence[str], detect: bool = False, groups: bool = False) -> tuple[int, str]:
        """Exit status and output of SEEDS seeds under each of `strategies`."""
        command = ["tests.explore", "--seeds", str(SEEDS), "--jobs", "1", "--strategies", ",".join(strategies)]
        return self._run([*command, *(["--detect"] if detect else []), *(["--groups"] if groups else [])])

    def explore_handoff(self, worlds: int) -> tuple[int, str]:
        """Exit status and output of the first `worlds` seeds."""
        return self._run(["tests.explore_handoff", "--seeds", str(worlds), "--jobs", "1"])

    def pytest(
        self, tests: Sequence[str], cpu_s: int = 0, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Exit status and output of `tests`. After `cpu_s` seconds of CPU time, unless that is 0, they are killed."""
        command = ["pytest", "-q", "-x", "-n", "0", "--no-header", "-p", "no:cacheprovider", *tests]
        return self._run(command, cpu_s, variables)

    def _run_killers(self, mutant: Mutant) -> Verdict:
        if mutant.strategies:
            status, output = self.explore(mutant.strategies, mutant.detect, mutant.groups)
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
            # A test that fails leaves threads behind, and one of them may abort the process at its end.
            if status != 0 and (found := re.search(r"^FAILED (\S+)", output, re.MULTILINE)):
                return Verdict(mutant, found[1])
            if status != 0:
                return Verdict(mutant, None, f"BROKEN: {output[-600:]}")
        return Verdict(mutant, None)

    def _run(
        self, module: Sequence[str], cpu_s: int = 0, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(self.folder), **(variables or {})}
        limits = [f"ulimit -d {DATA_KB}", *([f"ulimit -t {cpu_s}"] if cpu_s else [])]
        command = ["sh", "-c", f'{"; ".join(limits)}; exec "$@"', "sh", sys.executable, "-m", *module]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=self.limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return 1, "seed ?, strategy ?: hangs\nFAILED hangs"
        return done.returncode, done.stdout + done.stderr

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        self._clock += 10
        os.utime(path, (self._clock, self._clock))


def baseline(copy: Copy, mutants: Sequence[Mutant]) -> str:
    """What the killers say without any mutant: nothing, or their word is worth nothing."""
    files = set()
    for mutant in mutants:
        with suppress(LookupError):
            files.add(mutated(mutant, copy.texts)[0])
    copy.rewrite(sorted(files))
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    detecting = sorted({strategy for mutant in mutants if mutant.detect for strategy in mutant.strategies})
    grouped = sorted({strategy for mutant in mutants if mutant.groups for strategy in mutant.strategies})
    explored = [copy.explore(ANY), *([copy.explore(grouped, groups=True)] if grouped else [])]
    explored += [copy.explore(detecting, detect=True)] if detecting else []
    for status, output in (*explored, *([copy.pytest(tests)] if tests else [])):
        if status != 0:
            return output[-3000:]
    worlds = max((mutant.worlds for mutant in mutants), default=0)
    status, output = copy.explore_handoff(worlds) if worlds else (0, "")
    return output[-3000:] if status != 0 else ""


def judge_all(copies: Sequence[Copy], mutants: Sequence[Some], judge: Callable[[Copy, Some], Verdict]) -> list[Verdict]:
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
            verdict = judge(copy, mutant)
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


def _files(root: Path) -> list[str]:
    """What git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (root / name).is_file()]


def _may_define(text: str, function: str) -> bool:
    return all(f"def {part}(" in text or f"class {part}" in text for part in function.split("."))


def _short(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "..."
