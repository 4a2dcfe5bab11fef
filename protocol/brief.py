"""Show a value in an error: short and quickly made, whatever its size or depth."""

from reprlib import Repr
from typing import Any

SHOWN_CHARS = 80


def brief(value: Any) -> str:
    """Like repr, cut to about SHOWN_CHARS characters; `...` marks the cut."""
    if isinstance(value, str):
        text = repr(value[: SHOWN_CHARS + 1])
    else:
        maker = Repr()
        maker.maxstring = maker.maxother = maker.maxlong = SHOWN_CHARS
        maker.maxlevel = 3
        text = maker.repr(value)
    return text if len(text) <= SHOWN_CHARS + 2 else f"{text[:SHOWN_CHARS]}..."


def brief_name(name: str) -> str:
    """`name` itself if it is short and printable; otherwise `brief(name)`, with quotes."""
    return name if name.isprintable() and len(name) <= SHOWN_CHARS else brief(name)
