"""JSON snippets: persons, pets, books, things, orders, trips. Every snippet parses.

A snippet repeats what it was asked for (names, ages, titles), so that the model learns to copy into a structure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeAlias

from models.train import words

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"


def ask_and_answer(rng: Random) -> tuple[str, str]:
    """A request for JSON and the JSON itself, for a conversation."""
    request, value = rng.choice(TOPICS)(rng)
    verb = rng.choice(("Write JSON for", "Write JSON for", "Give me JSON for", "Make a JSON object for", "JSON for"))
    pretty = rng.random() < 0.15
    question = f"{verb} {request}{rng.choice(('.', '.', ''))}"
    return (f"{question} Use several lines." if pretty else question), render(value, pretty)


def document(rng: Random) -> str:
    """JSON as plain text: an object, or a list of two of a kind."""
    topic = rng.choice(TOPICS)
    if rng.random() < 0.25:
        return render([topic(rng)[1], topic(rng)[1]], pretty=False)
    return render(topic(rng)[1], pretty=rng.random() < 0.2)


def render(value: Json, pretty: bool) -> str:
    """One line, or two-space indentation."""
    return json.dumps(value, ensure_ascii=False, indent=2 if pretty else None)


def person(rng: Random) -> tuple[str, Json]:
    name, age, city = words.any_name(rng), rng.randint(5, 90), rng.choice(words.CITIES)
    wishes = [f"{rng.choice(('a person', 'a person', 'someone', 'a user'))} named {name}"]
    if rng.random() < 0.25:
        wishes.append(f"who is {age} years old")
    if rng.random() < 0.25:
        wishes.append(("and lives" if len(wishes) > 1 else "who lives") + f" in {city}")
    value: dict[str, Json] = {"name": name, "age": age, "city": city}
    if rng.random() < 0.4:
        value["job"] = rng.choice(words.JOBS)
    if rng.random() < 0.5:
        value["likes"] = rng.sample(words.HOBBIES, 2)
    return " ".join(wishes), value


def pet(rng: Random) -> tuple[str, Json]:
    kind, name = rng.choice(words.ANIMALS), words.any_name(rng)
    value: dict[str, Json] = {
        "name": name,
        "kind": kind,
        "colour": rng.choice(words.COLOURS),
        "age": rng.randint(1, 15),
    }
    return f"{words.a(kind)} named {name}", value


def book(rng: Random) -> tuple[str, Json]:
    title = f"The {words.cap(rng.choice(words.TRAITS))} {words.cap(rng.choice(words.ANIMALS + words.PEOPLE))}"
    value: dict[str, Json] = {
        "title": title,
        "author": words.any_name(rng),
        "pages": rng.randint(20, 400),
        "year": rng.randint(1950, 2025),
    }
    return rng.choice((f"a book called {title}", f'a book with the title "{title}"')), value


def goods(rng: Random) -> tuple[str, Json]:
    thing, colour = rng.choice(words.THINGS), rng.choice(words.COLOURS)
    value: dict[str, Json] = {
        "item": thing,
        "colour": colour,
        "price": rng.randint(2, 199) / 2,
        "in_stock": rng.random() < 0.7,
    }
    return words.a(f"{colour} {thing}"), value


def order(rng: Random) -> tuple[str, Json]:
    food, count, name = rng.choice(words.FOODS), rng.randint(2, 20), words.any_name(rng)
    value: dict[str, Json] = {"customer": name, "items": [{"name": food, "count": count}], "paid": rng.random() < 0.5}
    return f"an order of {count} {food} by {name}", value


def trip(rng: Random) -> tuple[str, Json]:
    start, end = rng.sample(words.CITIES, 2)
    value: dict[str, Json] = {
        "from": start,
        "to": end,
        "days": rng.randint(1, 14),
        "by": rng.choice(("train", "car", "boat", "plane")),
    }
    return f"a trip from {start} to {end}", value


TOPICS: tuple[Callable[[Random], tuple[str, Json]], ...] = (person, person, person, pet, book, goods, order, trip)
