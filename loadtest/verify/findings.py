"""What a run has found: verdicts by phase, findings with their texts, and the verdict on the whole run. Pure."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from loadtest.verify.answers import Choice
from loadtest.verify.judge import DEFECTS, UNCLEAR, Judged, Verdict
from loadtest.verify.ties import Noise, too_many_ties

MOST_KEPT = 50
QUIET = "quiet"  # the phase that is under no load
SURE = 0.95


class Exit(IntEnum):
    """Exit statuses. 2 is for a bad call."""

    CLEAN = 0
    FOUND = 1
    BAD_CALL = 2
    CANNOT_JUDGE = 3


@dataclass(frozen=True)
class Finding:
    """One bad answer. `got` and `known` are the two answers from where they part; `again` shows the request again."""

    verdict: Verdict
    phase: str
    why: str
    place: int | None = None
    margin: float | None = None
    got: str = ""
    known: str = ""
    again: str = ""


@dataclass
class Result:
    """A run, while it goes on and afterwards. `noises`: what the quiet phase has shown, by oracle."""

    oracles: Mapping[str, str]  # each with what it can do here, or why it cannot
    verdicts: dict[str, Counter[Verdict]] = field(default_factory=lambda: defaultdict(Counter))
    findings: list[Finding] = field(default_factory=list)
    noises: dict[str, Noise] = field(default_factory=dict)
    num_tokens: int = 0  # that were compared
    num_scored: int = 0
    ended: str = ""  # the bound that was reached
    stopped: str = ""  # why it had to stop
    unsure: list[str] = field(default_factory=list)  # why the run cannot be judged

    def add(self, phase: str, judged: Judged, finding: Finding | None = None) -> None:
        """Counts a verdict, and keeps a finding."""
        self.verdicts[phase][judged.verdict] += 1
        if finding is not None and len(self.findings) < MOST_KEPT:
            self.findings.append(finding)

    @property
    def counts(self) -> Counter[Verdict]:
        """Verdicts of all phases."""
        return sum(self.verdicts.values(), Counter[Verdict]())

    @property
    def doubts(self) -> list[str]:
        """Why the run is not clean although nothing was found."""
        counts = self.counts
        doubts = [f"{counts[word]} {word}" for word in UNCLEAR if counts[word]]
        doubts += filter(None, [too_many_ties(counts[Verdict.TIED], self.num_tokens), self.stopped])
        is_judged = any(verdict[Verdict.EXACT] for phase, verdict in self.verdicts.items() if phase != QUIET)
        return [*self.unsure, *doubts, *([] if is_judged else ["no answer under load was right"])]

    @property
    def exit(self) -> Exit:
        """The verdict on the run."""
        if any(self.counts[word] for word in DEFECTS):
            return Exit.FOUND
        return Exit.CANNOT_JUDGE if self.doubts else Exit.CLEAN

    @property
    def sentence(self) -> str:
        """The verdict on the run in words."""
        counts = self.counts
        if self.exit is Exit.FOUND:
            return "found: " + ", ".join(f"{counts[word]} {word}" for word in DEFECTS if counts[word])
        if self.exit is Exit.CANNOT_JUDGE:
            return "cannot judge: " + "; ".join(self.doubts)
        return f"clean: {counts.total():,} answers, {self.num_tokens:,} tokens; {seen(counts.total())}"


def seen(num: int) -> str:
    """The rate of a fault that so many answers would have shown, 19 times out of 20."""
    share = 1 - (1 - SURE) ** (1 / num) if num else 1.0
    return f"a fault that hits {share:.2%} of the answers would be missed once in 20 runs"


def parted(got: Choice, known: Choice | None, index: int | None) -> tuple[str, str]:
    """Two answers as people read them: some tokens before the place where they part, and all behind it."""
    start = max(0, (index or 0) - 8)

    def words(choice: Choice | None) -> str:
        if choice is None:
            return ""
        return f"{choice.text!r}; tokens from {start}: {' '.join(map(str, choice.tokens[start:]))}; {choice.finish}"

    return words(got), words(known)


def curl(url: str, body: bytes, has_key: bool) -> str:
    """A command that sends a request again. Its key is not shown."""
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"' if has_key else ""
    asked = f"-H 'Content-Type: application/json'{key} -d {shlex.quote(body.decode())}"
    return f"curl -s {shlex.quote(url + '/v1/completions')} {asked}"


def as_json(result: Result, about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report."""
    return {
        "baton_verify": 1,
        "exit": int(result.exit),
        "verdict": result.sentence,
        "environment": about,
        "oracles": result.oracles,
        "calibration": {name: vars(noise) for name, noise in result.noises.items()},
        "verdicts": {phase: {str(word): counts[word] for word in counts} for phase, counts in result.verdicts.items()},
        "tokens_compared": result.num_tokens,
        "answers_scored": result.num_scored,
        "ended": result.ended,
        "stopped": result.stopped,
        "doubts": result.doubts,
        "findings": [vars(finding) for finding in result.findings],
    }
