"""What the length of a text tells before it is tokenised: its fewest tokens, and how far a normalizer may stretch it.

NFKC makes 18 characters of U+FDFA, so that 8 MiB of it would take 17 GB as tokens.
"""

import json
from typing import Any, Final

from tokenizers import Tokenizer

KEEPING: Final = ("NFC", "NFD")  # normalizers that leave at least a character of each MOST_COMPOSED
MOST_COMPOSED: Final = 4  # characters that NFC may make one of, as of a letter and its three marks: U+1F82
MAX_GROWTH: Final = 18  # characters that NFKC makes of one, at most
# Normalizers that make at most four characters of one. `Replace` is another if it puts in one character at most.
STEADY: Final = frozenset("NFC NFD Lowercase Prepend Strip StripAccents Nmt".split())


def parts_of(component: Any, name: str) -> list[dict[str, Any]]:
    """The description of a normalizer or pre-tokenizer, with sequences flattened. `name`: the field of a sequence."""

    def flat(spec: dict[str, Any]) -> list[dict[str, Any]]:
        return [part for inner in spec[name] for part in flat(inner)] if spec["type"] == "Sequence" else [spec]

    return [] if component is None else flat(json.loads(component.__getstate__()))


def longest_token(tokenizer: Tokenizer) -> int | None:
    """The most characters that one token can stand for; None if a normalizer may drop any number of them."""
    normalizer = tokenizer.normalizer
    if normalizer is not None and type(normalizer).__name__ not in KEEPING:
        return None
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return longest if normalizer is None else MOST_COMPOSED * longest


def growth_of(tokenizer: Tokenizer) -> int:
    """How many times longer the normalizer may make a text: 1 or MAX_GROWTH."""
    parts = parts_of(tokenizer.normalizer, "normalizers")
    return 1 if all(map(_is_steady, parts)) else MAX_GROWTH


def _is_steady(part: dict[str, Any]) -> bool:
    return part["type"] in STEADY or (part["type"] == "Replace" and len(part["content"]) <= 1)
