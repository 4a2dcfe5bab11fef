"""How much a draft proposes: a chain or a tree, and how many slots and tokens of a row that takes.

Planner, executor and the sizes of memory take the numbers of a row from here.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class DraftShape:
    """A chain of `num_steps` tokens. With `topk` above 1, a tree of `num_steps` levels.

    In a tree the draft proposes `topk` tokens after each of `topk` tokens of a level. The target verifies `num_nodes`
    nodes, the last known token included.
    """

    num_steps: int
    topk: int = 1
    num_nodes: int = 0

    @property
    def is_tree(self) -> bool:
        """Whether several tokens are proposed after one."""
        return self.topk > 1

    @property
    def width(self) -> int:
        """Slots of a row that one launch writes at most; 0 without a draft.

        A chain of 3 steps writes 4: the last known token and its proposals. A tree of 3 levels with top-k 4 and 8 nodes
        writes 9: the draft's levels but the last take 2 * 4 slots behind the first one.
        """
        if not self.num_steps:
            return 0
        return max(self.num_nodes, (self.num_steps - 1) * self.topk + 1) if self.is_tree else self.num_steps + 1

    @property
    def num_computed(self) -> int:
        """Tokens of a row that one forward computes at most: 1 without a draft."""
        level = self.topk if self.num_steps > 1 else 1
        return max(self.num_nodes, level, self.num_steps + 1)

    def num_verified(self, num_steps: int) -> int:
        """Tokens of a row that the target computes in a launch that proposes `num_steps` tokens, or levels."""
        return self.num_nodes if num_steps and self.is_tree else num_steps + 1


NO_DRAFT: Final = DraftShape(0)
