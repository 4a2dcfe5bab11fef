"""Conversations: one or more turns about stories, sums, JSON and small talk, some with a system prompt.

Gives messages (role, content); how they become text is the chat template's business (see special.py).
"""

from dataclasses import dataclass
from random import Random

from models.train import arithmetic, facts, snippets, words
from models.train.stories import Wish, story

MAX_TURNS = 4


@dataclass(frozen=True)
class Message:
    """One turn: role is system, user or assistant."""

    role: str
    content: str


def conversation(rng: Random) -> tuple[Message, ...]:
    """Possibly a system prompt, then one to MAX_TURNS questions with their answers; at most one answer is a story."""
    messages: list[Message] = []
    if rng.random() < 0.35:
        messages.append(Message("system", system_prompt(rng)))
    num_turns = 1 if rng.random() < 0.6 else rng.randint(2, MAX_TURNS)
    num_stories = 0
    for _ in range(num_turns):
        wants_story = rng.random() < (0.45 if num_turns == 1 else 0.2) and num_stories < 1
        num_stories += wants_story
        question, answer = ask_for_story(rng) if wants_story else _short_exchange(rng)
        messages += [Message("user", question), Message("assistant", answer)]
    return tuple(messages)


def _short_exchange(rng: Random) -> tuple[str, str]:
    chance = rng.random()
    if chance < 0.5:
        return arithmetic.ask_and_answer(rng)
    if chance < 0.75:
        return snippets.ask_and_answer(rng)
    if chance < 0.85:
        return facts.small_talk(rng)
    return facts.fact(rng) if chance < 0.93 else facts.unknown(rng)


def system_prompt(rng: Random) -> str:
    """An instruction that changes nothing the model can do."""
    role = f"You are {words.a(rng.choice([*words.TRAITS, 'helpful', 'helpful', 'polite', 'good']))} "
    role += rng.choice(["assistant", "assistant", "assistant", *words.PEOPLE, *words.JOBS])
    rules = (
        "Be brief.",
        "Answer in English.",
        "Answer shortly.",
        "Be kind.",
        "Use simple words.",
        "Never be rude.",
        "",
    )
    return f"{role}. {rng.choice(rules)}".strip()


def ask_for_story(rng: Random) -> tuple[str, str]:
    """A wish, with or without a hero, a name, a thing, a friend; and a story that grants it."""
    kind = rng.choice(words.ANIMALS + words.ANIMALS + words.PEOPLE) if rng.random() < 0.9 else None
    name = words.any_name(rng) if rng.random() < 0.35 else None
    thing = f"{rng.choice(words.COLOURS)} {rng.choice(words.THINGS)}" if kind and rng.random() < 0.15 else None
    friend = words.any_name(rng) if name and rng.random() < 0.15 else None
    trait = f"{rng.choice(words.TRAITS)} " if rng.random() < 0.15 else ""
    about = _about(kind, name, thing, friend, trait)
    adjective = rng.choice(("", "", "short ", "little ", "small ", "nice "))
    ask = rng.choice(
        (
            "Tell me {} story",
            "Tell me {} story",
            "tell me {} story",
            "Write {} story",
            "Please write {} story",
            "Can you tell me {} story",
            "I would like {} story",
            "Please tell me {} story",
        )
    ).format(words.a(f"{adjective}story").removesuffix(" story") if adjective else "a")
    end = "?" if ask.startswith("Can") else rng.choice((".", ".", "", "!"))
    wish = Wish(kind, name, thing, friend if friend != name else None)
    return f"{ask}{about}{end}", story(rng, wish)


def _about(kind: str | None, name: str | None, thing: str | None, friend: str | None, trait: str) -> str:
    if kind is None and name is None:
        return ""
    hero = words.a(f"{trait}{kind}") + (f" named {name}" if name else "") if kind else str(name)
    extra = f" and {words.a(thing)}" if thing else f" and {friend}" if friend else ""
    return f" about {hero}{extra}"
