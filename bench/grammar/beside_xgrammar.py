"""`python -m bench.grammar.beside_xgrammar`: llguidance, which Baton uses, and xgrammar, on the same schemas.

It runs where both are installed: Baton does not depend on xgrammar. Each compiles a schema without a cache, then makes
a mask and reads a token, for all tokens of an answer. xgrammar prepares masks when it compiles, llguidance does not, so
both have to be seen together. One thread; times are of the CPU, so that other load does not count. The last line of
output is one JSON object.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

import xgrammar
from rich.console import Console
from rich.table import Table

from bench.turns import in_turn
from gateway.grammar_texts import text_of
from gateway.grammars import Asked
from models.train.train import STORY_FOLDER
from runtime.grammars import compile_grammar
from runtime.vocabulary import Vocabulary, load_vocabulary

EOS: Final = 2
NUM_MADE_UP: Final = 128_000  # tokens of a vocabulary as large as that of today's models
PATTERN: Final = {"type": "string", "pattern": "^[a-z]{2,50}$"}
Measured = tuple[float, list[float]]  # seconds of compiling, and of each token


def schemas() -> dict[str, tuple[dict[str, Any], Any]]:
    """By name: a schema, and a value that follows it."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
            "home": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"city": {"type": "string"}}}]},
        },
        "required": ["name", "age", "tags", "home"],
        "additionalProperties": False,
    }
    one = {"name": "Reynard", "age": 7, "tags": ["red", "blue"], "home": {"city": "Bremen"}}
    found: dict[str, tuple[dict[str, Any], Any]] = {
        "a person": (person, one),
        "a list of persons": ({"type": "array", "items": person}, [one] * 5),
        "any JSON object": ({"type": "object"}, {"persons": [one] * 3}),
        "a date, a mail address": (
            {
                "type": "object",
                "properties": {
                    "day": {"type": "string", "format": "date"},
                    "mail": {"type": "string", "format": "email"},
                },
                "required": ["day", "mail"],
                "additionalProperties": False,
            },
            {"day": "2024-02-29", "mail": "fox@forest.example"},
        ),
    }
    for num, value in ((30, {"type": "string"}), (300, {"type": "string"}), (3, PATTERN)):
        names = [f"field{place}" for place in range(num)]
        properties = dict.fromkeys(names, value)
        schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
        what = "with a pattern of repeats" if value is PATTERN else "that are texts"
        found[f"{num} properties {what}"] = (schema, dict.fromkeys(names, "fox"))
    return found


def made_up_tokens(known: Sequence[bytes], num: int) -> list[bytes]:
    """The known tokens, then others that are several of them: each is another."""
    rng, parts, found = random.Random(0), [each for each in known if each], list(known)
    seen = {*found}
    while len(found) < num:
        token = b"".join(rng.choices(parts, k=rng.randint(2, 3)))
        if token not in seen:
            seen.add(token)
            found.append(token)
    return found


def with_llguidance(schema: dict[str, Any], ids: Sequence[int], vocabulary: Vocabulary) -> Measured:
    """Times of what a worker does."""
    text = text_of(Asked("json", "json", schema))
    start = process_time()
    grammar = compile_grammar(text, vocabulary)
    compiled = process_time() - start

    matching, times = grammar.begin((EOS,)), []
    for token in ids:
        start = process_time()
        matching.mask()
        matching.read([token])
        times.append(process_time() - start)
        assert not matching.fault, matching.fault
    return compiled, times


def with_xgrammar(schema: dict[str, Any], ids: Sequence[int], info: xgrammar.TokenizerInfo) -> Measured:
    """Times of the same."""
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    text = json.dumps(schema)
    start = process_time()
    grammar = compiler.compile_json_schema(text)
    compiled = process_time() - start

    matcher, times = xgrammar.GrammarMatcher(grammar), []
    bitmask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
    for token in ids:
        start = process_time()
        matcher.fill_next_token_bitmask(bitmask)
        is_read = matcher.accept_token(token)
        times.append(process_time() - start)
        assert is_read, f"token {token} does not follow"
    return compiled, times


def compare(tokens: Sequence[bytes], special: frozenset[int], rounds: int) -> list[dict[str, Any]]:
    """A row for each schema and library."""
    vocabulary = Vocabulary(tokens, special)
    info = xgrammar.TokenizerInfo(
        [*tokens], vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[EOS]
    )
    sides: dict[str, Callable[[dict[str, Any], Sequence[int]], Measured]] = {
        "llguidance": lambda schema, ids: with_llguidance(schema, ids, vocabulary),
        "xgrammar": lambda schema, ids: with_xgrammar(schema, ids, info),
    }
    rows = []
    for name, (schema, value) in schemas().items():
        ids = vocabulary.tokenizer.greedy_tokenize(json.dumps(value, separators=(",", ":")))
        measured: dict[str, list[Measured]] = {side: [] for side in sides}
        for turn in range(rounds):
            for side in in_turn(tuple(sides), turn):
                measured[side].append(sides[side](schema, ids))
        for side, found in measured.items():
            each = sorted(time for _, times in found for time in times)
            rows.append(
                {
                    "schema": name,
                    "library": side,
                    "compile ms": round(median(compiled for compiled, _ in found) * 1e3, 2),
                    "a token us, median": round(median(each) * 1e6, 1),
                    "99th of 100": round(each[len(each) * 99 // 100] * 1e6, 1),
                    "most": round(each[-1] * 1e6, 1),
                    "tokens": len(ids),
                    "whole answer ms": round(median(compiled + sum(times) for compiled, times in found) * 1e3, 2),
                }
            )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.grammar.beside_xgrammar", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each library, in turn (default 5)")
    asked = parser.parse_args(argv)

    bundled = load_vocabulary(Path(STORY_FOLDER), 1024)
    known = [bundled.tokenizer.decode_bytes([token]) for token in range(bundled.num_tokens)]
    special = frozenset(token for token, text in enumerate(known) if not text or token == EOS)
    found = {
        f"{len(tokens)} tokens": compare(tokens, special, asked.rounds)
        for tokens in (known, made_up_tokens(known, NUM_MADE_UP))
    }
    for title, rows in found.items():
        table = Table(*rows[0], title=title)
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=140).print(table)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
