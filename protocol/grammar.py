"""Grammars that answers follow: their text, the name that stands for it, and what may be wrong with either.

The text is a grammar in the form of llguidance, which the gateway writes and workers compile. It travels with
Assign and PrefillJob, once for each request. Everything else names it: the name is a hash of the text.
"""

from typing import Annotated, Final

import xxhash
from pydantic import Field

MAX_GRAMMAR_CHARS: Final = 256 * 1024
GrammarText = Annotated[str, Field(strict=True, max_length=MAX_GRAMMAR_CHARS)]


def grammar_name(text: str) -> str:
    """The name of a grammar: 32 hexadecimal digits; "" for no grammar."""
    return xxhash.xxh3_128_hexdigest(text.encode()) if text else ""


def grammar_fault(text: str, name: str, eos_token_ids: tuple[int, ...], vocab_size: int) -> str | None:
    """Why a worker cannot serve an answer in this grammar, in one sentence; or None."""
    if grammar_name(text) != name:
        return f"grammar: got the name {name[:40]!r}, expected {grammar_name(text)!r}, the name of its text"
    if text and not any(0 <= token < vocab_size for token in eos_token_ids):
        return "grammar: got no EOS token of the vocabulary, expected one, with which its answers end"
    return None
