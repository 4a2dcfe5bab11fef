"""How long prompts and answers are: one number, or a distribution. Pure."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import ConfigError, brief

EXPECTED = "expected N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA"
MOST = 10_000_000
_KINDS = "uniform", "normal", "lognormal"


@dataclass(frozen=True)
class Lengths:
    """Numbers of tokens, at least `least`. `kind` "fixed" uses `first` only; `ratio` spreads a fixed length evenly."""

    kind: str
    first: float
    second: float = 0.0
    ratio: float = 0.0
    least: int = 1

    @classmethod
    def parse(cls, text: str, flag: str, ratio: float = 0.0, least: int = 1) -> "Lengths":
        """Reads what a user has typed. ConfigError names `flag`."""
        kind, *given = text.split(":") if ":" in text else ("fixed", text)
        wrong = ConfigError(f"{flag}: got {brief(text)}, {EXPECTED}", param=flag)
        try:
            numbers = [float(text) for text in given]
        except ValueError as error:
            raise wrong from error

        if kind == "fixed":
            if len(numbers) != 1 or numbers[0] != int(numbers[0]) or not least <= numbers[0] <= MOST:
                raise wrong
            return cls(kind, numbers[0], ratio=ratio, least=least)

        if kind not in _KINDS or len(numbers) != 2 or not all(0 <= number <= MOST for number in numbers):
            raise wrong
        if kind == "uniform" and numbers[0] > numbers[1]:
            raise wrong
        if kind == "lognormal" and numbers[0] == 0:
            raise wrong
        if ratio:
            raise ConfigError(
                f"{flag}: got {brief(text)} and --random-range-ratio; expected one of the two", param=flag
            )
        return cls(kind, numbers[0], numbers[1], least=least)

    def draw(self, rng: random.Random) -> int:
        """One length."""
        return max(self.least, round(self._draws()[self.kind](rng)))

    def words(self) -> str:
        """The distribution as it is typed."""
        if self.kind != "fixed":
            return f"{self.kind}:{self.first:g}:{self.second:g}"
        if self.ratio:
            return f"{self.first * (1 - self.ratio):g} to {self.first * (1 + self.ratio):g}"
        return f"{self.first:g}"

    def _draws(self) -> dict[str, Callable[[random.Random], float]]:
        return {
            "fixed": lambda rng: self.first * rng.uniform(1 - self.ratio, 1 + self.ratio) if self.ratio else self.first,
            "uniform": lambda rng: rng.randint(round(self.first), round(self.second)),
            "normal": lambda rng: min(rng.gauss(self.first, self.second), MOST),
            "lognormal": lambda rng: min(self.first * rng.lognormvariate(0, self.second), MOST),
        }
