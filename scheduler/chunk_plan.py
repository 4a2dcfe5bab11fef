"""Which prompt tokens the next launch computes, within a budget of tokens. Pure.

What it does not know: pages, rows, streams.
"""

from collections.abc import Sequence


def plan_chunks(remaining: Sequence[int], chunk_size: int, taken: int = 0) -> list[int]:
    """Tokens to compute of each prompt, oldest first: `remaining[i]` are left of prompt i, 0 entries follow the budget.

    `chunk_size` bounds the tokens of one launch, `taken` of which decodes use up already; 0 means whole prompts, one
    after the other. A launch always makes progress: at least one token of the oldest prompt.
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
