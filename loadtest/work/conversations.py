"""What is asked: conversations of one turn or several, and the random ones. Pure.

A turn has what is new in it, as token ids or as text. The history, answers included, is added when it is sent.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loadtest.work.lengths import Lengths

Tokens = tuple[int, ...]
ONE = Lengths("fixed", 1)
FIRST_ID = 3  # smaller ids are special in many vocabularies
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city name team minute idea body back parent face level office door health person art"
).split()


@dataclass(frozen=True)
class Turn:
    """One request. `think_s`: the client's wait before it. `cancel_after`: it leaves when it has so many tokens."""

    said: Tokens | str
    max_tokens: int
    think_s: float = 0.0
    cancel_after: int | None = None


@dataclass(frozen=True)
class Conversation:
    """Turns of one client, each sent when the answer to the one before has ended.

    `pause_s`: in a closed loop, the time after the last answer before the client's place is free.
    """

    turns: tuple[Turn, ...]
    pause_s: float = 0.0

    @property
    def key(self) -> int:
        """Equal for conversations that say the same."""
        return hash(tuple((turn.said, turn.max_tokens) for turn in self.turns))


@dataclass(frozen=True)
class RandomWork:
    """Prompts of random tokens: `prefix_tokens` that one of `num_prefixes` groups shares, then tokens of their own."""

    prompt: Lengths
    answer: Lengths
    prefix_tokens: int = 0
    num_prefixes: int = 1
    num_turns: Lengths = ONE
    vocab: int = 512
    as_text: bool = False  # words in place of token ids, for /v1/chat/completions

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """Endless. No two prompts begin alike, save by their prefix."""
        rng = random.Random(f"random work {seed}")
        prefixes = [self._tokens(rng, self.prefix_tokens) for _ in range(self.num_prefixes)]
        while True:
            prefix = rng.choice(prefixes)
            turns = []
            for _ in range(self.num_turns.draw(rng)):
                tokens = (*prefix, *self._tokens(rng, self.prompt.draw(rng)))
                said = self._text(tokens) if self.as_text else tokens
                turns.append(Turn(said, self.answer.draw(rng)))
                prefix = ()
            yield Conversation(tuple(turns))

    def words(self) -> str:
        """The work in one line."""
        shared = f"{self.prefix_tokens} shared + " if self.prefix_tokens else ""
        turns = f", {self.num_turns.words()} turns" if self.num_turns != ONE else ""
        unit = "words" if self.as_text else "tokens"
        return f"random, {shared}{self.prompt.words()} {unit} in, {self.answer.words()} out{turns}"

    def _tokens(self, rng: random.Random, count: int) -> Tokens:
        return tuple(rng.choices(range(min(FIRST_ID, self.vocab - 1), self.vocab), k=count))

    def _text(self, tokens: Sequence[int]) -> str:
        return " ".join(_WORDS[token % len(_WORDS)] for token in tokens)


def with_cancels(conversations: Iterator[Conversation], share: float, seed: int) -> Iterator[Conversation]:
    """A share of the clients leaves in the last turn, each after a random part of the answer."""
    rng = random.Random(f"cancels {seed}")
    for conversation in conversations:
        if rng.random() < share:
            *before, last = conversation.turns
            leaving = replace(last, cancel_after=rng.randint(1, max(1, last.max_tokens - 1)))
            conversation = replace(conversation, turns=(*before, leaving))
        yield conversation


def with_think_time(conversations: Iterator[Conversation], mean_s: float, seed: int) -> Iterator[Conversation]:
    """After each answer its client thinks, on average `mean_s` seconds (exponential)."""
    rng = random.Random(f"think {seed}")
    for conversation in conversations:
        first, *later = conversation.turns
        thinking = [replace(turn, think_s=rng.expovariate(1 / mean_s)) for turn in later]
        yield Conversation((first, *thinking), rng.expovariate(1 / mean_s))
