"""Has tests judge generated mutants. Which tests: see `judge_first`, then `Judge.tests_for`."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.candidates import Candidates
from tests.mutants.generate import Generated
from tests.mutants.run import Copy, Verdict
from tests.mutants.tracing import VARIABLE, Ran, read

NO_TESTS = 5  # pytest's exit status where each test of the files is slow
MOST_S = 60.0  # CPU time of the tests that a mutant has to survive
LEAST_S = 60  # of CPU time that a run may always take
STALLED_S = 120  # of wall time that no unit test takes, however busy the machine is


class Judge:
    """Knows what each candidate has entered."""

    def __init__(self, candidates: Candidates, ran: dict[str, Ran]) -> None:
        self._candidates = candidates
        self._ran = ran

    def tests_for(self, mutant: Generated) -> list[str]:
        """Test files named like the mutant's file, then others that enter its function: the quickest first, as many
        as take a minute of CPU time together."""
        chosen = [test for test in self._candidates.mirror(mutant.path) if test in self._ran]
        others = [test for test in self._entering(mutant) if test not in chosen]
        for test in sorted(others, key=lambda test: self._ran[test].cpu_s):
            if self._cpu_s([*chosen, test]) <= MOST_S:
                chosen.append(test)
        return chosen

    def judge(self, copy: Copy, mutant: Generated, least_s: int = LEAST_S) -> Verdict:
        """The first test that fails has noticed; so has a run that ends in any other way than without the mutant, or
        takes five times the CPU time and `least_s` seconds."""
        tests = self.tests_for(mutant)
        survives = "" if self._entering(mutant) else "SURVIVES: no unit test enters the function"
        if not tests:
            return Verdict(mutant, None, survives)
        limit_s = least_s + round(5 * self._cpu_s(tests))
        with copy.changed(mutant.path, mutant.text(copy.texts[mutant.path])):
            status, output = copy.pytest(["--timeout", str(STALLED_S), *tests], limit_s)
        return Verdict(mutant, None, survives) if status == 0 else Verdict(mutant, killer(status, output, limit_s))

    def _entering(self, mutant: Generated) -> list[str]:
        name = f"{mutant.path} {mutant.function}"
        return [test for test, ran in self._ran.items() if name in ran.entered]

    def _cpu_s(self, tests: Sequence[str]) -> float:
        return sum(self._ran[test].cpu_s for test in tests)


def judge_first(copy: Copy, mutants: Sequence[Generated], tell: Callable[[Verdict], None]) -> tuple[list[Verdict], str]:
    """Has the test files that are named like a mutant's file judge it: a first word within seconds. Returns the mutants
    that they notice; `tell` gets each at once. The text says which of these tests fail without any mutant."""
    candidates = Candidates(copy.texts)
    by_path = {mutant.path: tests for mutant in mutants if (tests := candidates.mirror(mutant.path))}
    if not by_path:
        return [], ""
    limits, limit_s = ["--timeout", str(STALLED_S)], round(5 * MOST_S)
    tests = sorted({test for tests in by_path.values() for test in tests})
    status, output = copy.pytest([*limits, *tests], limit_s * len(by_path))
    if status not in (0, NO_TESTS):
        return [], output[-3000:]

    noticed = []
    for mutant in mutants:
        if mutant.path in by_path:
            with copy.changed(mutant.path, mutant.text(copy.texts[mutant.path])):
                status, output = copy.pytest([*limits, *by_path[mutant.path]], limit_s)
            if status not in (0, NO_TESTS):
                noticed.append(Verdict(mutant, killer(status, output, limit_s)))
                tell(noticed[-1])
    return noticed, ""


def killer(status: int, output: str, limit_s: int) -> str:
    """Who has noticed, from what pytest says."""
    if failed := _failed(output):
        return failed[0]
    return f"the end of pytest, {status}: it may take {limit_s} s of CPU time"


def trace(copies: Sequence[Copy], mutants: Sequence[Generated]) -> tuple[Judge, str]:
    """Runs the candidates of `mutants` once, without any mutant. The text says which fail all the same, and why: their
    files judge nothing."""
    candidates = Candidates(copies[0].texts)
    paths = sorted({mutant.path for mutant in mutants})
    tests = sorted({test for path in paths for test in candidates.of(path)})
    shares = [(copy, tests[index :: len(copies)]) for index, copy in enumerate(copies)]
    for copy in copies:
        copy.rewrite(paths)

    with ThreadPoolExecutor(len(copies)) as pool:
        results = [*pool.map(lambda share: _trace_share(*share), [share for share in shares if share[1]])]

    wrong = "\n".join(output[-3000:] for _, status, output in results if status not in (0, NO_TESTS))
    failing = {test.partition("::")[0] for _, _, output in results for test in _failed(output)}
    ran = {test: each for traced, _, _ in results for test, each in traced.items() if test not in failing}
    return Judge(candidates, ran), wrong


def _trace_share(copy: Copy, tests: Sequence[str]) -> tuple[dict[str, Ran], int, str]:
    out = Path(copy.folder) / ".traced.json"
    out.unlink(missing_ok=True)
    options = ["-p", "tests.mutants.tracing", "--maxfail=0", "--continue-on-collection-errors"]
    status, output = copy.pytest([*options, *tests], variables={VARIABLE: str(out)})
    return read(out) if out.exists() else {}, status, output


def share_by_room(verdicts: Sequence[Verdict]) -> list[str]:
    """A table: mutants that were judged and noticed, by room and in all."""
    rooms: dict[str, list[bool]] = defaultdict(list)
    for verdict in verdicts:
        room = verdict.mutant.name.partition("/")[0]
        rooms[room].append(verdict.killer is not None)
    rooms = {**dict(sorted(rooms.items())), "in all": [each for some in rooms.values() for each in some]}
    lines = [f"{'room':<12} {'judged':>7} {'noticed':>8} {'share':>6}"]
    for room, noticed in rooms.items():
        share = f"{100 * sum(noticed) / len(noticed):.0f}%" if noticed else "-"
        lines.append(f"{room:<12} {len(noticed):>7} {sum(noticed):>8} {share:>6}")
    return lines


def _failed(output: str) -> list[str]:
    """The tests that pytest says have failed, and files that it could not import."""
    return [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
