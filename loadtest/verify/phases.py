"""What is asked, and in which company. Pure: all of it is made from a seed.

    load      known requests at once                cold      the same without the cache
    whole     streamed beside not streamed          turns     a known answer goes on from its middle
    choices   n beside single                       lengths   short ones beside and behind a long one
    sampled   with seeds: scoring judges            cancels   clients leave; known requests beside them
    churn     clients join and leave at a rate      fault     a command of the user's runs meanwhile

A round has each of them once, and only the first one has the fault. Rounds follow one another until a bound is reached.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from loadtest.verify.answers import Answer, Ask, Choice
from loadtest.verify.canary import RUN
from protocol.errors import ConfigError, brief

FIRST_ID = 5  # smaller ids are special in many vocabularies
SMALLEST_VOCAB = 64
LENGTHS = (24, 64, 33, 128, 48, 320, 60, 24)  # some are whole pages of any server
LONGEST = 1536  # a context that is longer is not filled
SHARED = 64  # ids with which half of the prompts begin: the cache may have them
LONG_AFTER = 8  # prompts of a round until one is long
CHOICES = 3
CALM = ("load", "whole", "cold", "turns", "choices", "lengths", "sampled")
ASKED_FOR = ("cancels", "churn", "fault")


@dataclass(frozen=True)
class Made:
    """A request that was made, and the needle in its prompt."""

    ask: Ask
    needle: tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """A request, its needle, and the quiet server's answer."""

    made: Made
    answer: Choice


@dataclass(frozen=True)
class Step:
    """One request. `known`: the number of the known request that it is or continues. `skip`: its prompt has so many
    tokens of the known answer. `is_cold`: no other request shares its cache. `is_judged`: there is a known answer."""

    ask: Ask
    known: int
    skip: int = 0
    stream: bool = True
    is_cold: bool = False
    leave_after: int | None = None
    is_judged: bool = True

    def right(self, known: Sequence[Known]) -> Answer:
        """The known answer to it: that of each choice."""
        return dict.fromkeys(range(self.ask.n), known[self.known].answer.after(self.skip))


@dataclass(frozen=True)
class Phase:
    """Requests that run in one another's company. `rate`: one of its own, in requests a second."""

    name: str
    steps: tuple[Step, ...]
    rate: float | None = None


def made_asks(seed: int, number: int, vocab: int, max_tokens: int, context: int) -> list[Made]:
    """Requests whose prompts have a needle: twice whole, and its first half at the end. Models go on with it."""
    rng = random.Random(seed)
    start = _ids(rng, SHARED, vocab)
    longest = min(context, LONGEST) - 4 * max_tokens - 1
    if longest < min(LENGTHS):
        raise ConfigError(f"--max-tokens: got {max_tokens}, expected room for prompts in a context of {context}")
    made_asks = []
    for index in range(number):
        needle = _ids(rng, RUN, vocab)
        length = min(longest, longest if index % LONG_AFTER == LONG_AFTER - 1 else LENGTHS[index % len(LENGTHS)])
        tail = (*needle, *_ids(rng, RUN // 2, vocab), *needle[: RUN // 2])
        head = (*start, *needle) if index % 2 and length > SHARED + 4 * RUN else needle
        middle = _ids(rng, max(0, length - len(head) - len(tail)), vocab)
        made_asks.append(Made(Ask((*head, *middle, *tail)[-length:], max_tokens, seed=index), needle))
    return made_asks


def rounds(known: Sequence[Known], seed: int, together: int, names: Sequence[str], churn: float) -> Iterator[Phase]:
    """Phases without end, in the order of `names`."""
    for turn in count():
        rng = random.Random(f"{seed} {turn}")
        for name in names:
            if name == "fault" and turn and len(names) > 1:
                continue
            rate = churn if name == "churn" else None
            yield Phase(name, tuple(_steps(name, known, rng, max(2, together))), rate)


def check_phase(name: str | None, extra: Sequence[str]) -> None:
    """ConfigError if there is no such phase, or if it was not asked for."""
    if name is not None and name not in (*CALM, *extra):
        told = f"; {name} needs its own flag" if name in ASKED_FOR else ""
        raise ConfigError(
            f"--only: got {brief(name)}, expected one of {', '.join((*CALM, *extra))}{told}", param="only"
        )


def _steps(name: str, known: Sequence[Known], rng: random.Random, together: int) -> Iterator[Step]:
    """One phase, in the order in which its requests are sent."""
    picked = [rng.randrange(len(known)) for _ in range(together)]
    plain = [Step(known[number].made.ask, number) for number in picked]
    longest = max(range(len(known)), key=lambda number: len(known[number].made.ask.prompt))

    for index, step in enumerate(plain):
        if name == "whole":
            yield replace(step, stream=False)
        if name in ("cancels", "churn"):
            yield _leaving(step, rng)
        if name == "cold":
            yield replace(step, is_cold=True)
        elif name == "turns":
            yield _continued(step, known[step.known].answer, rng)
        elif name == "choices" and index == 0:
            yield replace(step, ask=replace(step.ask, n=CHOICES), stream=rng.random() < 0.5)
        elif name == "sampled":
            yield replace(step, ask=replace(step.ask, temperature=1.0, seed=rng.getrandbits(31)), is_judged=False)
        elif name == "lengths" and index == 0:
            yield Step(known[longest].made.ask, longest)
        else:
            yield step


def _leaving(step: Step, rng: random.Random) -> Step:
    """The same prompt for longer, whose client leaves early: every second one before its first token."""
    ask = replace(step.ask, max_tokens=4 * step.ask.max_tokens)
    leave_after = rng.randint(1, max(1, step.ask.max_tokens // 2)) if rng.random() < 0.5 else 0
    return replace(step, ask=ask, leave_after=leave_after, is_cold=not leave_after)


def _continued(step: Step, answer: Choice, rng: random.Random) -> Step:
    """The prompt with the beginning of its answer. Only ids can be sent back."""
    ids = [token for token in answer.tokens if isinstance(token, int)]
    if len(ids) < max(2, len(answer.tokens)):
        return step
    skip = rng.randint(1, len(ids) - 1)
    ask = replace(step.ask, prompt=(*step.ask.prompt, *ids[:skip]), max_tokens=step.ask.max_tokens - skip)
    return replace(step, ask=ask, skip=skip)


def _ids(rng: random.Random, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_ID, vocab) for _ in range(length))
