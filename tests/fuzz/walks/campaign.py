"""Tries schema after schema, counts what became of them, and stores findings.

number --> a child process --> Tried: counted, or a finding that is stored with its schema and the command to repeat it
"""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

from tests.fuzz.fuzzing import Answer
from tests.fuzz.walks.trying import Found, Tried, schema_of

MAX_STORED: Final = 20  # findings of one kind


@dataclass(frozen=True)
class Options:
    """Schemas `first` to `first + num_schemas` of a kind, and where findings go."""

    kind: str
    seed: int
    first: int
    num_schemas: int
    folder: Path


@dataclass
class Totals:
    """Counts. `refused`: schemas by the reason; `walks`: answers by how they ended; `found`: findings by kind."""

    num_schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    walks: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)

    def table(self) -> list[str]:
        """Lines of a table: how many, and which share."""
        num_refused = self.refused.total()
        num_accepted = self.num_schemas - num_refused - self.found["died"] - self.found["raised"]
        rows = [("schemas", self.num_schemas, self.num_schemas), ("accepted", num_accepted, self.num_schemas)]
        rows += [(f"refused: {why}", number, self.num_schemas) for why, number in self.refused.most_common()]
        rows += [(f"answers: {end}", number, self.walks.total()) for end, number in self.walks.most_common()]
        rows += [(f"findings: {kind}", number, self.num_schemas) for kind, number in self.found.most_common()]
        return [
            "| what | number | share |",
            "|---|---|---|",
            *(f"| {what} | {number} | {number / max(1, of):.2%} |" for what, number, of in rows),
        ]


def run(options: Options, read: Callable[[int], Answer], say: Callable[[str], None], stop: Event) -> Totals:
    """All schemas, or those until `stop` is set. `read` tries one."""
    totals = Totals()
    for number in range(options.first, options.first + options.num_schemas):
        if stop.is_set():
            break
        totals.num_schemas += 1
        answer = read(number)
        result = _tried(answer)
        totals.walks += result.walks
        if result.refused:
            totals.refused[result.refused] += 1
        for each in (*result.found, *result.disputes):
            totals.found[each.kind] += each in result.found
            path = options.folder / _file_name(each, options, number)
            if totals.found[each.kind] <= MAX_STORED:
                _store(path, each, options, number)
                say(f"{each.kind}: {number}: {each.what[:300]}: {path}")
    return totals


def _tried(answer: Answer) -> Tried:
    """What the child tells; a child that died, or an error that is none of the gateway's, is a finding, too."""
    if answer.died:
        return Tried(found=[Found("died", answer.died)])
    if answer.wrong:
        return Tried(found=[Found("raised", answer.wrong)])
    told = json.loads(answer.outcome)
    return Tried(
        told["refused"],
        told["sentence"],
        Counter(told["walks"]),
        [Found(**each) for each in told["found"]],
        [Found(**each) for each in told["disputes"]],
    )


def _file_name(found: Found, options: Options, number: int) -> str:
    return f"{found.kind.replace(' ', '-')}-{options.kind}-{options.seed}-{number}.json"


def _store(path: Path, found: Found, options: Options, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = f"--kind {options.kind} --seed {options.seed} --from {number} --schemas 1"
    again = f"{sys.executable} -m tests.fuzz.walks {asked}"
    told = {
        "kind": options.kind,
        "seed": options.seed,
        "number": number,
        "what": found.what,
        "answer": found.answer,
        "again": again,
    }
    path.write_text(
        json.dumps({**told, "schema": schema_of(options.kind, options.seed, number)}, ensure_ascii=False, indent=1)
        + "\n"
    )
