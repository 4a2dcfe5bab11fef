"""The text of a grammar in llguidance's form, which workers compile. llguidance's own code makes most of it from what a
client sent, so this runs in the process for trials only (gateway/generation/grammars/trials.py).
"""

import json
import re
from functools import partial
from typing import Any, Final

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import gbnf_to_lark

from gateway.generation.grammars.calls import lark_of_calls
from gateway.generation.grammars.embedded import strict_form
from gateway.generation.grammars.lark import strict_lark
from gateway.generation.grammars.refused import GrammarRefused, place_of
from gateway.generation.grammars.schemas import strict_schema
from gateway.words.request import Grammar
from protocol.grammar import MAX_GRAMMAR_CHARS

MAX_TAGS: Final = 256
MAX_TOLD: Final = 300  # characters of a reason
MAX_RULE_CHARS: Final = 12_000_000  # rules times characters of a GBNF grammar: their conversion takes up to a second
MAX_RULES: Final = 4_000  # each may be called by the one before; llguidance takes 3 KB of stack for a call
_START: Final = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*|(?<![\w-])start(?![\w-])'
)  # texts, classes, and it
_LARK: Final = re.compile(r"%llguidance\b|[?!]?start(\.-?\d+)?\s*:(?!:=)")  # a line of Lark's spelling begins so


def text_of(asked: Grammar) -> str:
    """The grammar in the form that workers compile. GrammarRefused if no answer can follow it, or if its text is too
    long."""
    try:
        text = _text(asked)
    except GrammarRefused:
        raise
    except Exception as error:
        raise GrammarRefused(f"cannot be followed: {_line(error)}", place_of(asked)) from error
    if len(text) > MAX_GRAMMAR_CHARS:
        what = f"has {len(text)} characters as a grammar, expected at most {MAX_GRAMMAR_CHARS}"
        raise GrammarRefused(what, place_of(asked))
    return text


def _text(asked: Grammar) -> str:
    source = asked.source
    if asked.kind == "json":
        if isinstance(source, str):
            source = json.loads(source)
        return LLMatcher.grammar_from_json_schema(strict_schema(source, compact=asked.compact))
    if asked.kind == "regex":
        if (len(source) - len(source.rstrip("\\"))) % 2:  # llguidance would drop it
            raise ValueError("a backslash at the end, expected a character behind it")
        return LLMatcher.grammar_from_regex(source)
    if asked.kind == "choice":
        texts = [json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in source]  # as Lark has it
        # One terminal: as rules, each text would be an item of the parser, which has at most 2,000 at a time.
        return LLMatcher.grammar_from_lark(f"start: ONE\nONE: {' | '.join(texts)}")
    if asked.kind == "ebnf":
        of_lark = partial(_counted, compact=asked.compact)
        if source.lstrip().startswith("{"):  # llguidance's own form; neither GBNF nor Lark begins so
            return strict_form(source, of_lark, compact=asked.compact)
        return LLMatcher.grammar_from_lark(of_lark(_lark(source)))
    if asked.kind == "calls":
        return LLMatcher.grammar_from_lark(lark_of_calls(source))
    tags = _tags(json.loads(source) if isinstance(source, str) else source, compact=asked.compact)
    grammar = StructTag.to_grammar(tags, assume_special=False)
    return LLMatcher.grammar_from_lark(grammar.replace("\x7f", "\\u007f"))  # in texts, as Lark has it


def _counted(lark: str, *, compact: bool) -> str:
    """A grammar in Lark's spelling, with strict schemas and not too many rules."""
    strict, num_rules = strict_lark(lark, compact=compact)
    _check_count(num_rules)
    return strict


def _lark(source: str) -> str:
    """EBNF in Lark's spelling. Lines are looked at one by one: a pattern for the whole text takes minutes for a long
    run of line breaks, and lets no other thread run."""
    if any(_LARK.match(line.lstrip()) for line in source.split("\n")):
        return source
    num_rules = source.count("::=")
    _check_count(num_rules)
    if num_rules * len(source) > MAX_RULE_CHARS:
        most = MAX_RULE_CHARS // len(source)
        raise ValueError(f"got {num_rules} rules of {len(source)} characters in all, expected at most {most}")
    return str(gbnf_to_lark(_without_start(source)))


def _without_start(source: str) -> str:
    """GBNF in which no rule is named `start`: in Lark's spelling that is the name of `root`."""
    other = "start-of"
    while other in source:
        other += "-of"
    return _START.sub(lambda match: other if match[0] == "start" else match[0], source)


def _check_count(num_rules: int) -> None:
    """llguidance follows the names of rules by recursion, so as many rules are as many calls within one another."""
    if num_rules > MAX_RULES:
        raise ValueError(f"got {num_rules} rules, expected at most {MAX_RULES}")


def _tags(source: Any, *, compact: bool) -> list[StructTag]:
    """The parts of a structural tag: {structures: [{begin, schema, end}], triggers: [...]}."""
    structures = source.get("structures") if isinstance(source, dict) else None
    triggers = source.get("triggers") if isinstance(source, dict) else None
    lists = (structures, triggers)
    if not all(isinstance(entries, list) and 0 < len(entries) <= MAX_TAGS for entries in lists):
        raise ValueError(f"expected an object with 1 to {MAX_TAGS} `structures`, and as many `triggers`")
    tags: list[StructTag] = []
    assert isinstance(structures, list) and isinstance(triggers, list)
    for index, structure in enumerate(structures):
        if (
            not isinstance(structure, dict)
            or not isinstance(structure.get("begin"), str)
            or not isinstance(structure.get("end"), str)
        ):
            raise ValueError(f"structures[{index}]: expected an object with the texts `begin` and `end`")
        schema = structure.get("schema")
        if not isinstance(schema, dict | bool):
            raise ValueError(f"structures[{index}]: expected a JSON schema in `schema`")
        starts = [one for one in triggers if isinstance(one, str) and one and structure["begin"].startswith(one)]
        if not starts:
            raise ValueError(f"structures[{index}]: its begin starts with none of the triggers")
        grammar = strict_schema(schema, compact=compact)
        tags.append(
            StructTag(trigger=max(starts, key=len), begin=structure["begin"], grammar=grammar, end=structure["end"])
        )
    return tags


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return repr(text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}...")[1:-1]
