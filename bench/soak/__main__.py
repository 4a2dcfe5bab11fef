"""`python -m bench.soak`: a deployment of Baton under mixed load, with clients that leave and regular faults.

Status 0 means: no token wrong, no request lost, every fault recovered from, all pages free at the end, no process grown
and none left behind. The last line of output is one JSON object.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import psutil

from bench.programs import run_program
from bench.records import Value
from bench.sheet import Printed, Sheet
from bench.soak.faults import Fault
from bench.soak.run import Findings, Plan, Soak
from bench.soak.starts import Starts, endings
from bench.soak.watch import Growth, Watch
from loadtest.bench_flags import at_least, number
from loadtest.deployment import SERVE, deployment
from loadtest.ports import held_port
from loadtest.verify.judge import Verdict
from runtime.clock import Clock, MonotonicClock

ORPHANS_S = 30.0
# Unless the command line says otherwise. There is no --max-restarts: faults may hit one process again and again.
_FLAGS = {"--dtype": "float32", "--max-total-tokens": "16384"}
_LOG_LINES = 40
_KEPT_LINES = 200_000  # of the log: every end of a process is in them


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    findings: Findings
    growths: Sequence[Growth]
    orphans: Sequence[str]
    said: Sequence[str]  # the last lines of the deployment's log
    ends: Sequence[str] = ()  # of these, and of some before: which processes ended, as the launcher says it

    @property
    def starts(self) -> Starts:
        """How often something was started again."""
        return Starts.told_in(self.ends)

    def problems(self) -> list[str]:
        """Everything that is wrong, a line each. A pause costs no counted start."""
        grown = [f"{growth.name} grew" for growth in self.growths if growth.is_flat is False]
        counted, kills = self.starts.counted, self.findings.num_landed(Fault.KILL)
        extra = [f"{counted} starts were counted, for {kills} kills"] if counted > kills else []
        orphans = [f"left behind: {orphan}" for orphan in self.orphans]
        return [*self.findings.problems(), *extra, *grown, *orphans]


async def soak(plan: Plan, arguments: Sequence[str], clock: Clock, sheet: Sheet) -> None:
    """Starts a deployment, runs the plan on it, stops it, and writes what came of it."""
    said: Sequence[bytes] = ()
    with held_port() as port:  # a gateway that is started again must get the same port
        async with deployment(arguments, (*SERVE[:-2], "--port", str(port)), _KEPT_LINES) as running:
            watch = Watch(running.pid)
            watch.look(clock.now())
            run = Soak(plan, running, clock, watch, tell=sheet.note)
            sheet.note("the known answers, undisturbed")
            await run.learn()
            faults = f"a fault every {plan.fault_every_s:g} s" if plan.fault_every_s else "no faults"
            sheet.note(f"{plan.seconds:g} s of load from {plan.clients} clients, {faults}")
            await run.run()
            watch.look(clock.now())
            said = running.said
    _, alive = psutil.wait_procs(watch.processes(), ORPHANS_S)
    left = {process.pid for process in alive} & {process.pid for process in watch.processes()}
    orphans = [f"process {pid}" for pid in sorted(left)]
    words = [line.decode(errors="replace") for line in said]
    outcome = Outcome(run.findings, watch.growths(), orphans, words[-_LOG_LINES:], endings(words))
    show(outcome, plan, sheet)


def show(outcome: Outcome, plan: Plan, sheet: Sheet) -> None:
    """Writes the tables, and what is wrong."""
    findings, problems, starts = outcome.findings, outcome.problems(), outcome.starts
    for verdict in Verdict:
        codes = ", ".join(f"{code} {count}" for code, count in sorted(findings.error_codes.items()))
        cells: dict[str, Value] = {"ended as": verdict, "number": findings.verdicts[verdict]}
        sheet.row("Requests", cells | {"by code": codes if verdict is Verdict.ERROR else ""})

    for (fault, role), times in sorted(Counter((hit.fault, hit.role) for hit in findings.hits).items()):
        these = [hit for hit in findings.hits if (hit.fault, hit.role) == (fault, role)]
        took = [hit.recovered_s for hit in these if hit.recovered_s is not None]
        cells = {"fault": fault, "of": role, "number": times, "landed": sum(hit.landed for hit in these)}
        cells |= {"recovered": len(took), "median s": median(took) if took else None}
        sheet.row("Faults", cells | {"longest s": max(took, default=None)})

    for growth in outcome.growths:
        flat = {True: "yes", False: "NO", None: "too short"}[growth.is_flat]
        sheet.row("Processes", {**asdict(growth), "is_flat": flat})

    events = {words: (sum(counts.values()), counts) for words, counts in findings.counted.shown().items()}
    for words, (total, counts) in events.items():
        _event(sheet, words, total, ", ".join(f"{key} {count}" for key, count in counts.items()))
    _event(sheet, "tokens", findings.num_tokens)
    _event(sheet, "kills", findings.num_landed(Fault.KILL), f"{starts.counted} starts that count as failures")
    _event(sheet, "pauses", findings.num_landed(Fault.STOP), f"{starts.after_pauses} starts that do not count")
    if plan.is_storm:
        _event(sheet, "faults for which no process was there", findings.num_missed)
        _event(sheet, "seconds until all served after the storm", findings.healed_s)
    if findings.rests:
        seconds = f"{sum(rest.seconds for rest in findings.rests):.0f} s in all"
        _event(sheet, "times in which nobody asked", len(findings.rests), seconds)
        _event(sheet, "launches in these", sum(rest.launches or 0 for rest in findings.rests))

    for line in [*outcome.ends, *findings.told, *(["the last lines of its log:", *outcome.said] if problems else [])]:
        sheet.note(line)
    for problem in problems:
        sheet.fault(problem)
    sheet.note(last_line(outcome))


def _event(sheet: Sheet, words: str, total: float | None, of_each: str = "") -> None:
    sheet.row("Counted", {"what": words, "in all": total, "of each": of_each})


def serve_flags(flags: Mapping[str, str], given: Sequence[str]) -> list[str]:
    """Those that are not among the `given` words: `baton serve` takes no flag twice."""
    names = {word.partition("=")[0] for word in given}
    return [f"{name}={value}" for name, value in flags.items() if name not in names]


def last_line(outcome: Outcome) -> str:
    """The verdict in words. A run too short to judge growth does not claim that there was none."""
    if problems := outcome.problems():
        return f"problems: {'; '.join(problems)}"
    if any(growth.is_flat is None for growth in outcome.growths):
        return "nothing wrong, lost or left behind; too short to see whether each process stays flat"
    return "nothing wrong, lost, grown or left behind"


def main(argv: Sequence[str] | None = None) -> int:
    """Status 1 if anything is wrong, 2 for wrong arguments or a deployment that does not start."""
    asked = _parser().parse_args(argv)
    counts = {"prefill": asked.prefill, "decode": asked.decode, "unified": asked.unified}
    roles = sorted(("gateway", *(role for role, count in counts.items() if count)))
    if unknown := [role for role in asked.hit or () if role not in roles]:
        print(f"soak: error: --hit: got {unknown[0]!r}, expected some of {', '.join(roles)}", file=sys.stderr)
        return 2

    load = (asked.seconds, asked.clients, asked.leaving, asked.fault_every, asked.asks, asked.vocab, asked.seed)
    plan = Plan(*load, tuple(asked.hit or roles), asked.pause, asked.work, asked.rest, asked.storm)
    flags = {**_FLAGS, **{f"--{role}": str(count) for role, count in counts.items()}}
    arguments = [*serve_flags(flags, asked.serve), *asked.serve]

    sheet = Printed("soak")
    return run_program("soak", soak(plan, arguments, MonotonicClock(), sheet), sheet)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="A deployment under mixed load, with clients that leave and a fault every so often. Ends with "
        "status 1 if anything is wrong, lost, grown or left behind.",
        epilog="For a minute: make soak ARGS='--seconds 60 --fault-every 12'. Too short to see growth. A storm: "
        "make soak ARGS='--storm --seconds 300 --fault-every 6 --hit prefill,decode'.",
    )
    add = parser.add_argument
    add("--seconds", type=number(0.001), default=1200.0, help="of load (default 1200)")
    add("--clients", type=at_least(1), default=8, help="requests at a time (default 8)")
    add("--leaving", type=number(0.0, 1.0), default=0.2, help="share of clients that go away (default 0.2)")
    add("--fault-every", type=number(0.0), default=20.0, help="seconds between faults (default 20); 0: no faults")
    add("--storm", action="store_true", help="faults do not wait for recovery; pauses last 0.5 to 8 s")
    add("--hit", type=_roles, help="roles whose processes are hit (default: all): prefill,decode")
    add("--pause", type=number(0.0), default=0.0, help="mean random pause of a client (default 0)")
    add("--work", type=number(0.001), default=30.0, help="seconds between two rests (default 30)")
    add("--rest", type=number(0.0), default=0.0, help="seconds in which nobody asks (default 0: none)")
    add("--asks", type=int, default=24, help="different requests (default 24)")
    add("--vocab", type=int, default=1000, help="prompt ids are below this (default 1000)")
    add("--seed", type=int, default=0, help="of requests and faults (default 0)")
    add("--prefill", type=int, default=2, help="prefill workers (default 2)")
    add("--decode", type=int, default=2, help="decode workers (default 2)")
    add("--unified", type=int, default=0, help="unified workers (default 0)")
    add("serve", nargs="*", help="further arguments of baton serve, after --")
    return parser


def _roles(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    raise SystemExit(main())
