"""The training text: an endless, seeded mixture of stories, sums, JSON, facts and conversations.

Each document is a string that may contain turn tokens; packing.py adds the end-of-text token between documents.
"""

from collections.abc import Iterator
from itertools import islice
from random import Random

from models.train import arithmetic, facts, snippets
from models.train.conversations import Message, conversation
from models.train.special import TURN_END, TURN_START
from models.train.stories import story


def documents(seed: int) -> Iterator[str]:
    """Documents without end; the same seed gives the same documents on every machine."""
    rng = Random(seed)
    while True:
        yield document(rng)


def sample(seed: int, num_documents: int) -> list[str]:
    """The first documents of a seed."""
    return list(islice(documents(seed), num_documents))


def document(rng: Random) -> str:
    """One document: conversations three times in five, else plain text."""
    chance = rng.random()
    if chance < 0.62:
        return chat_text(conversation(rng))
    if chance < 0.78:
        return story(rng)
    if chance < 0.9:
        return arithmetic.worksheet(rng)
    return snippets.document(rng) if chance < 0.96 else facts.statement(rng)


def chat_text(messages: tuple[Message, ...]) -> str:
    """What the chat template makes of the messages."""
    return "".join(f"{TURN_START}{message.role}\n{message.content}{TURN_END}\n" for message in messages)
