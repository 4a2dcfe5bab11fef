"""What one grammar may take to compile and to match, at the gateway and at workers, and how a refusal reads."""

from typing import Final

from llguidance import LLParserLimits

MAX_ITEMS_IN_ROW: Final = 500
_IN_WORDS: Final = {"NoExtensionBias": "nothing may follow"}


def limits() -> LLParserLimits:
    """A state of the lexer takes 1 to 2 KB. Fuel bounds the time of compiling (20 ms, and what follows from the size).

    Items in a row bound what an ambiguous grammar takes: at 500 up to 2.2 ms for each byte of a token that is read, and
    some 100 ms for a mask; at 1,000 up to 13 ms and 600 ms, at the library's 2,000 up to 90 ms a byte. An object needs
    4 items for each property that may be left out.
    """
    return LLParserLimits(max_items_in_row=MAX_ITEMS_IN_ROW, max_lexer_states=20_000, verbose_errors=False)


def complaint(error: str) -> str:
    """What llguidance says of an error, in one line."""
    lines = [line for line in error.partition("\n<state>")[0].splitlines() if not line.startswith(("<", "   "))]
    found = " ".join(" ".join(lines).split())[:300] or "no reason given"
    return _IN_WORDS.get(found, found)
