"""What one grammar may take to compile and to match, at the gateway and at workers, and how a refusal reads."""

from llguidance import LLParserLimits


def limits() -> LLParserLimits:
    """A state of the lexer takes 1 to 2 KB. Fuel bounds the time of compiling (20 ms, and what follows from the size)
    and of one mask (15 ms)."""
    return LLParserLimits(max_lexer_states=20_000, verbose_errors=False)


def complaint(error: str) -> str:
    """What llguidance says of an error, in one line."""
    if error.strip() == "NoExtensionBias":
        return "nothing may follow"
    lines = [line for line in error.splitlines() if not line.startswith(("<", "   "))]
    return " ".join(" ".join(lines).split())[:300] or "no reason given"
