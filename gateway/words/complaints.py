"""A value of a body as an error shows it: short, and read no further than it is shown."""

import json
from collections.abc import Iterator
from typing import Any

MAX_SHOWN = 80  # characters of a value that an error shows


def short(value: Any) -> str:
    """A value as an error shows it: text in single quotes, anything else as JSON. Reads no more of the value than is
    shown."""
    if isinstance(value, str):
        text = repr(value[: MAX_SHOWN + 1])
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."

    shown = ""
    for piece in _written(value):
        shown += piece
        if len(shown) > MAX_SHOWN:
            return shown[: MAX_SHOWN - 3] + "..."
    return shown


def _written(value: Any) -> Iterator[str]:
    """The value as JSON, piece by piece."""
    if isinstance(value, str):
        cut = value[: MAX_SHOWN + 1]
        yield json.dumps(cut, ensure_ascii=not cut.isprintable())
    elif isinstance(value, list | dict):
        begin, end = "{}" if isinstance(value, dict) else "[]"
        yield begin
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _written(item)
            if isinstance(value, dict):
                yield ": "
                yield from _written(value[item])
        yield end
    else:
        yield json.dumps(value)
