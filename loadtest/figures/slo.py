"""Service level objectives: what `--goodput ttft:500 itl:50` asks of each request. Pure."""

from collections.abc import Mapping, Sequence
from math import isfinite

from loadtest.figures.record import Record
from protocol.errors import ConfigError, brief

Slos = Mapping[str, float]  # a name of NAMES to milliseconds
_ALIASES = {"itl": "tpot", "e2el": "e2e"}
NAMES = ("ttft", "tpot", "e2e", "gap")
EXPECTED = "expected NAME:MILLISECONDS with a name of ttft, tpot (or itl), e2e (or e2el), gap"


def parse_slos(texts: Sequence[str]) -> dict[str, float]:
    """Reads what a user has typed. ConfigError names the wrong part."""
    slos: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        name = _ALIASES.get(name, name)
        try:
            limit = float(value)
        except ValueError:
            limit = float("nan")
        if name not in NAMES or not isfinite(limit) or limit <= 0:
            raise ConfigError(f"--goodput: got {brief(text)}, {EXPECTED}", param="goodput")
        if name in slos:
            raise ConfigError(f"--goodput: {name} is given twice, expected one limit", param="goodput")
        slos[name] = limit
    return slos


def meets(record: Record, slos: Slos) -> bool:
    """Whether the request ended well within every limit. An answer of one token has no gap to judge."""
    if not record.is_done:
        return False
    seen = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s, "gap": record.gap_s}
    return all((value := seen[name]) is None or value * 1e3 <= limit for name, limit in slos.items())
