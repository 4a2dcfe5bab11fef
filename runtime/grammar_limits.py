"""What one grammar may take to compile and to match, at the gateway and at workers, and how a refusal reads."""

from typing import Final

from llguidance import LLParserLimits

_IN_WORDS: Final = {"NoExtensionBias": "nothing may follow"}


def limits() -> LLParserLimits:
    """A state of the lexer takes 1 to 2 KB. Fuel bounds the time of compiling (20 ms, and what follows from the size)
    and of one mask (15 ms)."""
    return LLParserLimits(max_lexer_states=20_000, verbose_errors=False)


def complaint(error: str) -> str:
    """What llguidance says of an error, in one line."""
    lines = [line for line in error.partition("\n<state>")[0].splitlines() if not line.startswith(("<", "   "))]
    found = " ".join(" ".join(lines).split())[:300] or "no reason given"
    return _IN_WORDS.get(found, found)
