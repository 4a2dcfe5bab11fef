"""The base of every dataclass that crosses a socket: unknown fields and non-finite numbers are refused on arrival.

What it does not know: encoding (codec.py) or who sends what.
"""

from typing import ClassVar

from pydantic import ConfigDict, NonNegativeInt

Count = NonNegativeInt  # an int, refused on arrival when negative


class Message:
    """Carries the validation rules that codec.py applies; adds no field."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
