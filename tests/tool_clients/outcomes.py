"""What the suites print or write about their cases, read into one form. A suite that prints something else raises."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

PASSED: Final = "passed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
_OF_CHECKS: Final = {"pass": PASSED, "warn": FAILED, "fail": FAILED, "skip": SKIPPED}
_OF_PYTEST: Final = {"failure": FAILED, "error": FAILED, "skipped": SKIPPED}
_REASON_CHARS: Final = 300


@dataclass(frozen=True)
class Case:
    """One case of a suite. `reason`: of one that has not passed."""

    name: str
    outcome: str
    reason: str = ""


Reader = Callable[[str], Sequence[Case]]


def of_lines(text: str) -> list[Case]:
    """Of our own programs for clients: each line is one case as JSON."""
    return [_case(**json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def of_pytest(text: str) -> list[Case]:
    """Of pytest: its report as JUnit's XML."""

    def cases() -> Iterator[Case]:
        for node in ElementTree.fromstring(text).iter("testcase"):
            name = f"{node.get('classname', '').rpartition('.')[2]}::{node.get('name')}"
            worst = next((child for child in node if child.tag in _OF_PYTEST), None)
            if worst is None:
                yield Case(name, PASSED)
            else:
                yield _case(name, _OF_PYTEST[worst.tag], worst.get("message") or worst.text or "")

    return list(cases())


def of_comply(text: str) -> list[Case]:
    """Of llm-comply: its JSON. It names the errors of what it skips, too."""
    return [
        _case(result["id"], result["status"], "; ".join(result.get("errors", ())))
        for result in json.loads(text)["results"]
    ]


def of_provider_check(text: str) -> list[Case]:
    """Of trustedrouter-provider-check: its JSON. A warning counts as a failure."""
    return [
        _case(check["id"], _OF_CHECKS[check["status"]], check["measured"].get("reason") or check["assertion"])
        for check in json.loads(text)["checks"]
    ]


def _case(name: str, outcome: str, reason: str) -> Case:
    if outcome not in (PASSED, FAILED, SKIPPED):
        raise ValueError(f"{name}: unknown outcome {outcome}")
    return Case(name, outcome, "" if outcome == PASSED else " ".join(reason.split())[:_REASON_CHARS])
