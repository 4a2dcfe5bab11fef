"""A tree of proposals by plain lists: the reference for scheduler/speculation/draft_tree.py."""

from collections.abc import Callable

Proposals = Callable[[tuple[int, ...], int], list[tuple[int, float]]]  # of a path and a slot: tokens with their scores


class ListedTree:
    """A draft proposes `topk` tokens after the root, in slot -1, and after each of the best `topk` of a level, which
    have slots of their own.

    `candidates` are (path, score, number of the parent). `beams` are numbers, by level. `paths` are those of the nodes.
    """

    def __init__(self, proposals: Proposals, topk: int, num_steps: int, num_nodes: int) -> None:
        self.candidates: list[tuple[tuple[int, ...], float, int]] = []
        self.beams: list[list[int]] = []
        beam: list[tuple[tuple[int, ...], float, int]] = [((), 0, -1)]
        for level in range(num_steps):
            begin, slot = len(self.candidates), (level - 1) * topk if level else -1
            for at, (path, score, number) in enumerate(beam):
                self.candidates += [((*path, token), score + p, number) for token, p in proposals(path, slot + at)]
            numbers = list(range(begin, len(self.candidates)))
            if level:
                numbers = sorted(numbers, key=lambda each: -self.candidates[each][1])[:topk]
            self.beams.append(numbers)
            beam = [(*self.candidates[number][:2], number) for number in numbers]

        order = sorted(range(len(self.candidates)), key=lambda each: -self.candidates[each][1])
        self.paths = [(), *(self.candidates[number][0] for number in sorted(order[: num_nodes - 1]))]

    def ancestors(self, node: int) -> int:
        """A bit for each node on the path, itself included."""
        path = self.paths[node]
        return sum(1 << other for other, each in enumerate(self.paths) if path[: len(each)] == each)

    def num_kept(self, drawn: tuple[int, ...], room: int) -> int:
        """How many nodes are kept if the target draws these tokens. Nodes from `room` on never are."""
        within = set(self.paths[:room])
        return next((length for length in range(len(drawn)) if drawn[: length + 1] not in within), len(drawn))
