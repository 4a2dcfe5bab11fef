"""Small sums: which ones exist, which are kept out of the training text, and how they are asked and answered.

A sum that is held out never occurs in the training text, in either order; measure.py asks it to see whether the model
has learned to add or only to remember.
"""

from dataclasses import dataclass
from random import Random

from models.train import words

MAX_ADDEND = 20
_HELD_OUT_EVERY = 9


@dataclass(frozen=True)
class Sum:
    """`left op right = result`, op being one of + - x."""

    left: int
    op: str
    right: int

    @property
    def result(self) -> int:
        if self.op == "+":
            return self.left + self.right
        return self.left - self.right if self.op == "-" else self.left * self.right

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


def is_held_out(left: int, right: int) -> bool:
    """True for one in nine of the additions with an addend from 10 to 20; single-digit sums are all trained."""
    low, high = min(left, right), max(left, right)
    return 10 <= high <= MAX_ADDEND and (low * 7 + high * 4) % _HELD_OUT_EVERY == 0


def held_out_sums() -> tuple[Sum, ...]:
    """Every addition up to 20 + 20 that the training text never shows, in both orders."""
    numbers = range(MAX_ADDEND + 1)
    return tuple(Sum(left, "+", right) for left in numbers for right in numbers if is_held_out(left, right))


def draw_sum(rng: Random) -> Sum:
    """Mostly additions up to 20 + 20; some up to 40 + 40, subtractions up to 20 and products up to 10 x 10."""
    chance = rng.random()
    if chance < 0.12:
        return Sum(rng.randint(0, 10), "x", rng.randint(0, 10))
    if chance < 0.3:
        left = rng.randint(0, MAX_ADDEND)
        return Sum(left, "-", rng.randint(0, left))
    limit = 9 if chance < 0.5 else MAX_ADDEND if chance < 0.85 else 40
    while True:
        left, right = rng.randint(0, limit), rng.randint(0, limit)
        if not is_held_out(left, right):
            return Sum(left, "+", right)


def ask_and_answer(rng: Random) -> tuple[str, str]:
    """A question and its answer, for a conversation."""
    chosen = draw_sum(rng)
    if chosen.op != "x" and rng.random() < 0.12:
        return _word_problem(rng, chosen)
    word = {"+": "plus", "-": "minus", "x": "times"}[chosen.op]
    sign = rng.choice(("*", "x", "×")) if chosen.op == "x" else chosen.op
    spaced = f"{chosen.left} {sign} {chosen.right}"
    question = rng.choice(
        (
            f"What is {spaced}?",
            f"What is {spaced}?",
            f"what is {spaced}",
            f"What is {chosen.left}{sign}{chosen.right}?",
            f"What is {chosen.left} {word} {chosen.right}?",
            f"{spaced} = ?",
            f"{spaced}",
            f"{chosen.left}{sign}{chosen.right}",
            f"How much is {spaced}?",
            f"Calculate {spaced}.",
            f"Compute {spaced}.",
            f"Can you tell me what {spaced} is?",
        )
    )
    return question, f"{chosen.left} {sign} {chosen.right} = {chosen.result}."


def _word_problem(rng: Random, chosen: Sum) -> tuple[str, str]:
    name, goods = words.any_name(rng), rng.choice(words.COUNTED)
    if chosen.op == "+":
        change = rng.choice(("gets {} more", "buys {} more", "finds {} more")).format(chosen.right)
    else:
        change = rng.choice(("gives away {}", "loses {}", "sells {}")).format(chosen.right)
    question = f"{name} has {chosen.left} {goods} and {change}. How many {goods} does {name} have now?"
    return question, f"{chosen} = {chosen.result}. {name} has {chosen.result} {goods}."


def worksheet(rng: Random) -> str:
    """A few lines of sums, as plain text."""
    if rng.random() < 0.3:
        return "\n".join(
            f"Question: {question}\nAnswer: {answer}" for question, answer in (ask_and_answer(rng) for _ in range(3))
        )
    layout = rng.choice(("{} = {}", "{}={}", "{} = {}", "{} = {}."))
    sums = [draw_sum(rng) for _ in range(rng.randint(4, 10))]
    return "\n".join(layout.format(chosen, chosen.result) for chosen in sums)
