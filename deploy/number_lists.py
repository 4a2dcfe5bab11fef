"""Lists of cores or GPUs, written like `0-3,6`. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ConfigError

MAX_CHARS = 1000
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True)
class NumberList:
    """How errors name a list: its option without dashes, the noun of a number, the expected text."""

    option: str
    noun: str
    expected: str

    def read(self, text: str, available: Sequence[int]) -> tuple[int, ...]:
        """The numbers in the order of the list. Raises ConfigError for an unavailable or repeated number."""
        found: list[int] = []
        for part in text[:MAX_CHARS].split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or len(text) > MAX_CHARS:
                raise self._wrong(text, f", expected {self.expected}")
            first, last = int(match[1]), int(match[2] or match[1])
            if first > last:
                raise self._wrong(text, f", expected {last}-{first}")

            numbers = range(first, last + 1)
            unknown = next((each for each in numbers if each not in available), None)
            if unknown is not None:
                there = f"there are {show_numbers(available)}" if available else f"there is no {self.noun} at all"
                raise self._wrong(text, f", but there is no {self.noun} {unknown} for this process; {there}")
            twice = next((each for each in numbers if each in found), None)
            if twice is not None:
                raise self._wrong(text, f", which names {self.noun} {twice} twice")
            found += numbers

        return tuple(found)

    def _wrong(self, text: str, what: str) -> ConfigError:
        return ConfigError(f"--{self.option}: got {text[:80]!r}{what}", param=self.option)


def show_numbers(numbers: Sequence[int]) -> str:
    """`0-3,6`."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][-1] + 1:
            parts[-1].append(each)
        else:
            parts.append([each])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
