"""Which prompt tokens the next launch computes, within a budget of tokens. Pure."""

from collections.abc import Sequence


def plan_chunks(remaining: Sequence[int], chunk_size: int, taken: int = 0) -> list[int]:
    """How many tokens of each prompt to compute. `remaining[i]` tokens are left of prompt i; prompts are oldest first.

    `chunk_size` bounds the tokens of one launch, and decodes take `taken` of them. 0 means whole prompts, one at a
    time. A launch computes at least one token of the oldest prompt.
    """
    if chunk_size == 0:
        return [remaining[0]] + [0] * (len(remaining) - 1) if remaining else []
    budget = max(chunk_size - taken, 1)
    planned: list[int] = []
    for left in remaining:
        take = min(left, budget)
        planned.append(take)
        budget -= take
    return planned
