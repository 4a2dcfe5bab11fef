"""Answers drawn from the masks of a grammar of calls, and what the channels read of them."""

import json
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from gateway.generation.grammars.trials import compiled
from gateway.generation.tool_grammars import grammar_of_calls
from gateway.text.channels.channels import Channels
from gateway.text.channels.fold import Whole, fold
from gateway.text.channels.formats import CALL_FORMATS, THINK
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.words.events import Event
from gateway.words.request import Choice, Conversation, Grammar, Text, Tool, Turn
from models.train.train import STORY_FOLDER
from runtime.vocabulary import Vocabulary, load_vocabulary

FORMATS: Final = {name: Format(CALL_FORMATS[name], THINK) for name in sorted(CALL_FORMATS)}
MAX_STEPS: Final = 1500
MANY: Final = 500  # tokens that may follow within a text
_RANKS: Final = ((b'"}]', 2), (b"\n", 3), (b",:", 4), (b"0123456789", 5), (b"-", 7), (b"{[\\", 8))
_PARTS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"enum": ["red", "dark blue", "é\n"]},
    {"enum": ["red", 7, None]},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "integer"}]},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2},
    {"type": "boolean", "title": "Flag"},
    {"const": "yes"},
    {"type": ["string", "null"], "enum": ["a", "null", "long one"], "minLength": 3},
    {"type": ["string", "integer"], "enum": ["a", "7"], "title": "Texts alone"},
    {"enum": ["a", 7, 8], "const": 7},
    {"type": "array", "items": {"enum": ["a", "</parameter>", 1]}, "maxItems": 3},
    {"$ref": "#/$defs/point"},
    {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
    {},
)
_DEFS: Final[dict[str, Any]] = {
    "point": {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
}


class Model(NamedTuple):
    """A vocabulary, and the markers of a format in it."""

    vocabulary: Vocabulary
    markers: Markers
    eos: int

    @property
    def tokens(self) -> list[str]:
        """The markers that are one token each."""
        return list(self.markers.by_id.values())


@cache
def model_of(format_name: str, with_tokens: bool) -> Model:
    """The bundled model's vocabulary, with the markers as added tokens that are not special, as Qwen has them."""
    form, folder = FORMATS[format_name], Path(STORY_FOLDER)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if with_tokens:
        tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in form.markers])
    with TemporaryDirectory() as path:
        tokenizer.save(f"{path}/tokenizer.json")
        vocabulary = load_vocabulary(Path(path), tokenizer.get_vocab_size())
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    return Model(vocabulary, Markers(form, tokenizer.token_to_id), eos)


def random_tools(rng: Random, *, strict: bool = True) -> list[Tool]:
    """One to five tools, some without arguments, with names of which one begins another."""
    names = rng.sample(["get", "get_all", "get.all", "set-1", "s", "x" * 128], rng.randint(1, 5))
    return [Tool(name, schema=_schema(rng), strict=strict) for name in names]


def _schema(rng: Random) -> dict[str, Any]:
    names = rng.sample(["a", "ab", "city name", "é", "n"], rng.randint(0, 4))
    properties = {name: rng.choice(_PARTS) for name in names}
    required = [name for name in names if rng.random() < 0.5]
    rest: dict[str, Any] = rng.choice(({}, {"additionalProperties": False}))
    return {"type": "object", "properties": properties, "required": required, "$defs": _DEFS, **rest}


def conversation(
    tools: Sequence[Tool], choice: Choice, *, parallel: bool = True, budget: int | None = None
) -> Conversation:
    """A conversation with these tools, whose answer has so many tokens of thoughts at most."""
    turns = [Turn("user", (Text("hello"),))]
    return Conversation(turns, tools=tools, choice=choice, parallel=parallel, reasoning_tokens=budget)


class Answer(NamedTuple):
    """A drawn answer. `has_ended`: with EOS."""

    tokens: list[int]
    has_ended: bool


def drawn(model: Model, asked: Grammar, rng: Random, num_free: int, first: Sequence[int] = ()) -> Answer:
    """An answer of a grammar: `first`, `num_free` tokens drawn at random, then those that bring it to its end."""
    _, grammar = compiled(asked, model.vocabulary)
    matching, tokens, goal = grammar.begin((model.eos,)), list[int](), b""
    closers = _closers(model)
    for step in range(MAX_STEPS):
        bits = np.unpackbits(matching.mask().view(np.uint8), bitorder="little")[: model.vocabulary.num_tokens]
        allowed = [int(token) for token in np.flatnonzero(bits)]
        assert allowed and not matching.fault, (matching.fault, text_of(model, tokens))

        goal = goal or rng.choice(closers)
        token = _nearest(model, allowed, goal, rng)
        if step < len(first):
            token = first[step]
            assert token in allowed
        elif step < num_free and rng.random() < 0.9:
            token = rng.choice([token for token in allowed if token != model.eos] or allowed)
        text = model.vocabulary.tokens[token]
        goal = goal.removeprefix(text) if goal.startswith(text) else b""
        matching.read([token])
        assert not matching.fault, (matching.fault, text_of(model, tokens))
        if matching.is_over:
            return Answer(tokens, True)
        tokens.append(token)
    return Answer(tokens, False)


def _nearest(model: Model, allowed: list[int], goal: bytes, rng: Random) -> int:
    """A token that leads to the end of the answer, or one that goes on with the closing tag `goal`."""
    for token in (model.eos, *model.markers.by_id):
        if token in allowed:
            return token
    texts = model.vocabulary.tokens
    is_raw = len(allowed) > MANY and any(texts[token] == b"\n" for token in allowed)
    if is_raw or len(allowed) < MANY:
        on_way = [token for token in allowed if goal.startswith(texts[token])]
        if on_way and (is_raw or len(allowed) < 20):
            return max(on_way, key=lambda token: len(texts[token]))
    ranks = [next((rank for firsts, rank in _RANKS if texts[token][0] in firsts), 6) for token in allowed]
    return rng.choice([token for token, rank in zip(allowed, ranks, strict=True) if rank == min(ranks)])


def _closers(model: Model) -> list[bytes]:
    form = model.markers.format
    fields = ("value_closing", "call_closing", "closing")
    tags = [getattr(form.calls, name, None) for name in fields]
    tags += [f"{getattr(form.calls, 'pad', '')}{tag}" for tag in tags[:1] if tag]
    if form.reasoning is not None:
        tags.append(form.reasoning.closing)
    return [tag.encode() for tag in tags if tag is not None]


def read(model: Model, tokens: Sequence[int], tools: Sequence[Tool], *, opened: bool) -> Whole:
    """What the channels read of an answer."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    channels = Channels(
        model.markers,
        tools={tool.name: tool.schema for tool in tools},
        is_reasoning_open=opened,
        response_id="answer",
        choice=0,
    )
    events: list[Event] = []
    for token in tokens:
        if token in model.markers.by_id:
            events += channels.text(decoder.decode(b"", final=True)) + channels.marker(token)
            decoder.reset()
        else:
            events += channels.text(decoder.decode(model.vocabulary.tokens[token]))
    return fold([*events, *channels.text(decoder.decode(b"", final=True)), *channels.end()])


def text_of(model: Model, tokens: Sequence[int]) -> str:
    """The answer as text, with the names of its markers."""
    return b"".join(model.vocabulary.tokens[token] for token in tokens).decode(errors="replace")


def asked_of(
    model: Model,
    tools: Sequence[Tool],
    choice: Choice,
    *,
    parallel: bool = True,
    opened: bool = False,
    budget: int | None = None,
) -> Grammar | None:
    """The grammar for these tools in the format of a model."""
    return grammar_of_calls(
        model.markers.format,
        model.tokens,
        conversation(tools, choice, parallel=parallel, budget=budget),
        is_reasoning_open=opened,
    )
