"""What one grammar may take to compile and to match, at the gateway and at workers, and how a refusal reads."""

import json
from typing import Final

from llguidance import LLParserLimits

MAX_ITEMS_IN_ROW: Final = 500
MAX_SCHEMA_ITEMS: Final = 2_000
MAX_CHARS: Final = 300  # of what llguidance says
HEAD_CHARS: Final = 200  # of these, from its beginning
_IN_WORDS: Final = {"NoExtensionBias": "nothing may follow"}


def limits(text: str) -> LLParserLimits:
    """For the grammar of this text. A state of the lexer takes 1 to 2 KB. Fuel bounds the time of compiling (20 ms, and
    what follows from the size).

    Items in a row bound what an ambiguous grammar takes: at 500 up to 2.2 ms for each byte of a token that is read, and
    some 100 ms for a mask; at 1,000 up to 13 ms and 600 ms, at the library's 2,000 up to 90 ms a byte. In JSON, marks
    stand between all parts, so that a byte takes less than 1 ms at 2,000. An object needs 4 items for each property
    that may be left out.
    """
    most = MAX_SCHEMA_ITEMS if _is_schema(text) else MAX_ITEMS_IN_ROW
    return LLParserLimits(max_items_in_row=most, max_lexer_states=20_000, verbose_errors=False)


def _is_schema(text: str) -> bool:
    """Whether the grammar is made of JSON schemas alone."""
    if not text.startswith("{"):
        return False
    try:
        grammars = json.loads(text).get("grammars")
    except (ValueError, RecursionError):
        return False
    return isinstance(grammars, list) and all(
        isinstance(part, dict) and "json_schema" in part and "lark_grammar" not in part for part in grammars
    )


def complaint(error: str) -> str:
    """What llguidance says of an error, in one line."""
    lines = [line for line in error.partition("\n<state>")[0].splitlines() if not line.startswith(("<", "   "))]
    text = " ".join(" ".join(lines).split()) or "no reason given"
    if len(text) > MAX_CHARS:
        text = f"{text[:HEAD_CHARS]} ... {text[-(MAX_CHARS - HEAD_CHARS) :]}"  # the end says where it is
    return _IN_WORDS.get(text, text)
