"""A digest of tokenizer.json, by which gateway and workers check that they use the same tokenizer."""

from pathlib import Path

import xxhash

from protocol.errors import CheckpointError


def tokenizer_digest(folder: Path) -> str:
    """xxh3-128 of the folder's tokenizer.json, in hexadecimal; "" if there is none. CheckpointError if it cannot be
    read."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return ""
    if not path.is_file():
        raise CheckpointError(f"{path}: not a file")
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
