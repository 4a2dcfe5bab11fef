"""How vocabularies spell bytes: GPT-2's alphabet of bytes, and SentencePiece's names of single bytes."""

import re
from functools import lru_cache
from typing import Final

from tokenizers import Tokenizer, decoders, pre_tokenizers

BYTE_TOKEN: Final = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's spelling of a byte that has no token of its own


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether this vocabulary spells its tokens in GPT-2's byte alphabet."""
    return isinstance(tokenizer.decoder, decoders.ByteLevel)


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte: itself if it is visible in Latin-1, else one from U+0100 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    hidden = (byte for byte in range(256) if chr(byte) not in alphabet)
    return {char: ord(char) if ord(char) < 0x100 else next(hidden) for char in alphabet}
