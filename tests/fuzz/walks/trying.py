"""Tries one random schema: the gateway makes a grammar of it, and random answers of that grammar are judged.

number --> schema --> refused: the sentence is compared with the schema      (refusals.py)
                 '--> a grammar --> walks: each answer must end, and be valid (walking.py)
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from gateway.generation.grammars.refused import GrammarRefused
from gateway.generation.grammars.trials import compiled
from gateway.words.request import Grammar
from runtime.vocabulary import Vocabulary, load_vocabulary
from tests.fuzz.served.judge import BEYOND_A_BOUND
from tests.fuzz.served.validators import NotJudged, wrong_with
from tests.fuzz.walks.kinds import KINDS
from tests.fuzz.walks.refusals import reason, untrue
from tests.fuzz.walks.walking import STYLES, Walk, Walker

STORY: Final = Path(__file__).resolve().parents[3] / "models" / "story"


@dataclass(frozen=True)
class Found:
    """What is wrong. `kind`: dead end, does not follow, no UTF-8, or untrue refusal."""

    kind: str
    what: str
    answer: str = ""


@dataclass
class Tried:
    """What became of one schema. `refused`: why, as a row of the table; "" if it was accepted. `walks`: how many came
    to which end. `disputes`: answers on which two validators disagree."""

    refused: str = ""
    sentence: str = ""
    walks: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    disputes: list[Found] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        lists = {name: [asdict(each) for each in getattr(self, name)] for name in ("found", "disputes")}
        return {"refused": self.refused, "sentence": self.sentence, "walks": dict(self.walks), **lists}


def schema_of(kind: str, seed: int, number: int) -> Any:
    """The schema of this kind and number, whatever else has been drawn."""
    return KINDS[kind](_random(seed, number))


def tried(kind: str, seed: int, number: int) -> Tried:
    """What becomes of the schema of this kind and number."""
    asked_for, rng = schema_of(kind, seed, number), Random(f"answers {seed} {number}")
    try:
        _, grammar = compiled(Grammar("json", asked_for), _vocabulary())
    except GrammarRefused as error:
        sentence = error.what
        wrong = untrue(sentence, asked_for, rng)
        found = [Found("untrue refusal", f"{wrong}: {sentence}")] if wrong else []
        return Tried(reason(sentence), sentence, found=found)

    result = Tried()
    for style in STYLES:
        _judge(result, _walker().walk(grammar, style, rng), asked_for)
    return result


def _judge(result: Tried, walk: Walk, asked_for: Any) -> None:
    """Counts a walk, and notes what is wrong with it."""
    answer = walk.answer.decode(errors="replace")
    if walk.fault:
        at_a_bound = BEYOND_A_BOUND.search(walk.fault)
        result.walks["stopped at a bound of work" if at_a_bound else "dead end"] += 1
        result.found += [] if at_a_bound else [Found("dead end", walk.fault, answer)]
        return
    if not walk.has_ended:
        result.walks["too long"] += 1
        return

    kind, what = _verdict(walk.answer, asked_for)
    result.walks[kind] += 1
    if kind == "disputed":
        result.disputes.append(Found(kind, what, answer))
    elif what:
        result.found.append(Found(kind, what, answer))


def _verdict(answer: bytes, asked_for: Any) -> tuple[str, str]:
    try:
        wrong = wrong_with(answer.decode(), asked_for)
    except UnicodeDecodeError as error:
        return "no UTF-8", str(error)
    except NotJudged:
        return "not judged", ""
    if wrong.startswith("disputed"):
        return "disputed", wrong
    return ("does not follow", wrong) if wrong else ("valid", "")


def _random(seed: int, number: int) -> Random:
    return Random(f"walks {seed} {number}")


@cache
def _vocabulary() -> Vocabulary:
    """The bundled model's."""
    return load_vocabulary(STORY, json.loads((STORY / "config.json").read_text())["vocab_size"])


@cache
def _walker() -> Walker:
    return Walker(_vocabulary(), json.loads((STORY / "config.json").read_text())["eos_token_id"])
