"""Asks a server for answers that follow schemas, and looks at them."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.e2e.baton_process import PATIENCE_S, BatonProcess
from tests.fuzz.served.validators import wrong_with

MESSAGES = ({"role": "user", "content": "Describe a fox."},)
CHAT = "/v1/chat/completions"
WORDS = ("name", "age", "tags", "ok", "price", "note", "size", "id")
SMALL = {"small": {"type": "integer", "minimum": 1, "maximum": 5}}  # what references name


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """An object whose values are bounded, so that a model ends it soon."""
    names = rng.sample(WORDS, rng.randint(1, 3))
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.8],
    }
    if rng.random() < 0.9:
        found["additionalProperties"] = False
    return found


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format", "anyOf", "ref"]
    kind = rng.choice([*kinds, "object", "array", "array"] if depth else kinds)
    match kind:
        case "string":
            least = rng.randint(0, 2)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}
        case "integer":
            least = rng.randint(-50, 50)
            return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 500)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": rng.randint(1, 99)}
        case "enum":
            return {"enum": rng.sample(["red", "green", 7, None, True, "a b", "\u00fc", '"q"'], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["x", 3, False, None])}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(["^[a-z]{2,5}$", "^[0-9]{4}-[0-9]{2}$", "^(ab|cd)+x$"])}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4"])}
        case "anyOf":
            return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["none", "many"]}]}
        case "object":
            return random_schema(rng, depth)
        case "array":
            least = rng.randint(0, 2)
            items = _value(rng, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
        case "ref":
            return {"$ref": "#/$defs/small"}
    return {"type": kind}


def post(baton: BatonProcess, path: str, body: dict[str, Any], status: int = 200) -> Any:
    """The answer's body."""
    answer = httpx.post(baton.url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == status, answer.text
    return answer.json()


def bodies(seeds: Sequence[int], max_tokens: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(schema, body) of requests with random schemas, greedy and not, for two choices each."""
    for seed in seeds:
        rng = random.Random(f"schema {seed}")
        schema = {**random_schema(rng), "$defs": SMALL}
        temperature = rng.choice((0.0, 0.7, 1.5))
        field: dict[str, Any] = rng.choice(
            (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
                {"guided_json": schema},
                {"structured_outputs": {"json": schema}},
            )
        )
        sampling = {"max_tokens": max_tokens, "seed": seed, "temperature": temperature, "n": 2}
        yield schema, {"messages": MESSAGES, **sampling, **field}


def answers_to(baton: BatonProcess, seeds: Sequence[int], max_tokens: int = 200) -> list[list[tuple[str, str]]]:
    """(finish reason, text) of each choice. All that end by themselves follow their schemas."""
    asked, found = list(bodies(seeds, max_tokens)), []
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: post(baton, CHAT, each[1]), asked))
    for (schema, _), answer in zip(asked, answers, strict=True):
        choices = [(each["finish_reason"], each["message"]["content"]) for each in answer["choices"]]
        assert not any(wrong_with(text, schema) for reason, text in choices if reason != "length"), (schema, choices)
        found.append(choices)
    return found
