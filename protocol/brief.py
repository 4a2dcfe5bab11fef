"""A value as it stands in an error: whatever its size or depth, short and quickly made.

What it does not know: why it is shown.
"""

from reprlib import Repr
from typing import Any

SHOWN_CHARS = 80


def brief(value: Any) -> str:
    """Like repr, but never much longer than SHOWN_CHARS characters; what was cut ends in `...`."""
    if isinstance(value, str):
        text = repr(value[: SHOWN_CHARS + 1])
    else:
        maker = Repr()
        maker.maxstring = maker.maxother = maker.maxlong = SHOWN_CHARS
        maker.maxlevel = 3
        text = maker.repr(value)
    return text if len(text) <= SHOWN_CHARS + 2 else f"{text[:SHOWN_CHARS]}..."


def brief_name(name: str) -> str:
    """A name without quotes, if it is short and printable."""
    return name if name.isprintable() and len(name) <= SHOWN_CHARS else brief(name)
