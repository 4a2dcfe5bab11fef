"""Trees of proposals against plain lists: what is proposed, verified and kept. Many scores are equal."""

import random

import pytest
import torch

from scheduler.speculation.draft_tree import (
    Beam,
    Candidates,
    Nodes,
    best_tokens,
    best_tree,
    empty_tree,
    first_level,
    next_level,
    walk,
)
from tests.doubles.listed_tree import ListedTree, Proposals

SHAPES = [(2, 1, 3), (2, 3, 5), (3, 2, 2), (3, 3, 22), (4, 4, 8), (2, 5, 19), (8, 2, 64), (1, 4, 5), (2, 31, 64)]


def proposals_of(seed: int, topk: int, equal: bool) -> Proposals:
    """Scores are eighths, so that sums are exact; `equal`: all the same."""

    def proposals(path: tuple[int, ...], _: int) -> list[tuple[int, float]]:
        rng = random.Random(f"{seed} {path}")
        drawn = [(token, -rng.randint(0, 6) / 8 if not equal else -0.5) for token in rng.sample(range(50), topk)]
        return sorted(drawn, key=lambda proposal: -proposal[1])

    return proposals


def grown(rows: list[Proposals], topk: int, num_steps: int) -> tuple[Candidates, list[Beam]]:
    """The product's candidates of several rows, with the beam of each level."""
    first = [proposals((), 0) for proposals in rows]
    candidates, beam = first_level(
        torch.tensor([[token for token, _ in scored] for scored in first]),
        torch.tensor([[score for _, score in scored] for scored in first]),
    )
    beams, paths = [beam], [[(token,) for token, _ in scored] for scored in first]
    for level in range(2, num_steps + 1):
        after = [[proposals(path, 0) for path in of] for proposals, of in zip(rows, paths, strict=True)]
        tokens_BKK = torch.tensor([[[token for token, _ in scored] for scored in row] for row in after])
        log_p_BKK = torch.tensor([[[score for _, score in scored] for scored in row] for row in after])
        candidates, beam = next_level(candidates, beam, tokens_BKK, log_p_BKK, level)
        moves = zip(paths, beam.from_BK.tolist(), beam.tokens_BK.tolist(), strict=True)
        paths = [[(*of[at], token) for at, token in zip(ats, tokens, strict=True)] for of, ats, tokens in moves]
        beams.append(beam)
    return candidates, beams


def unsigned(bits: int) -> int:
    return bits % 2**64


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tree_has_the_best_candidates_and_their_parents(shape: tuple[int, int, int], equal: bool) -> None:
    topk, num_steps, num_nodes = shape
    rows = [proposals_of(seed, topk, equal) for seed in range(5)]
    wanted = [ListedTree(proposals, topk, num_steps, num_nodes) for proposals in rows]
    candidates, beams = grown(rows, topk, num_steps)
    for level, beam in enumerate(beams):
        assert beam.numbers_BK.tolist() == [listed.beams[level] for listed in wanted]
        expected = [[listed.candidates[number][0][-1] for number in listed.beams[level]] for listed in wanted]
        assert beam.tokens_BK.tolist() == expected

    tree = best_tree(torch.arange(90, 95), candidates, topk, num_steps, num_nodes)
    for row, listed in enumerate(wanted):
        assert tree.tokens_BW[row].tolist() == [90 + row, *(path[-1] for path in listed.paths[1:])]
        assert tree.depths_BW[row].tolist() == [len(path) for path in listed.paths]
        assert list(map(unsigned, tree.bits_BW[row].tolist())) == list(map(listed.ancestors, range(num_nodes)))
        parents = [listed.paths.index(path[:-1]) for path in listed.paths[1:]]
        assert tree.parents_BW[row].tolist() == [-1, *parents]
        assert all(parent < node for node, parent in enumerate(tree.parents_BW[row].tolist()))


def test_a_node_of_a_beam_sees_its_own_path_and_no_other() -> None:
    """Node b of level t lies behind all of the levels before it."""
    topk, num_steps = 3, 5
    rows = [proposals_of(seed, topk, False) for seed in range(4)]
    _, beams = grown(rows, topk, num_steps)
    for row, proposals in enumerate(rows):
        listed, slots = ListedTree(proposals, topk, num_steps, 8), dict[tuple[int, ...], int]()
        for level, beam in enumerate(beams):
            paths = [listed.candidates[number][0] for number in listed.beams[level]]
            slots |= {path: level * topk + at for at, path in enumerate(paths)}
            wanted = [sum(1 << slots[path[:end]] for end in range(1, len(path) + 1)) for path in paths]
            assert beam.bits_BK[row].tolist() == wanted


def walked(tree: Nodes, drawn: list[int], room: int, row: int = 0) -> list[int]:
    """Node by node, in plain integers."""
    tokens, parents = tree.tokens_BW[row].tolist(), tree.parents_BW[row].tolist()
    path = [0]
    while True:
        children = [node for node, parent in enumerate(parents) if parent == path[-1] and node < room]
        wanted = drawn[path[-1]]
        next_nodes = [node for node in children if tokens[node] == wanted >= 0]
        if not next_nodes:
            return path
        path.append(next_nodes[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_path_follows_what_the_target_draws(shape: tuple[int, int, int]) -> None:
    topk, num_steps, num_nodes = shape
    rng, lengths = random.Random(num_nodes), set()
    for seed in range(20):
        rows = [proposals_of(4 * seed + row, topk, seed % 3 == 0) for row in range(4)]
        tree = best_tree(torch.arange(4), grown(rows, topk, num_steps)[0], topk, num_steps, num_nodes)
        drawn_BW = torch.tensor([[rng.randrange(50) for _ in range(num_nodes)] for _ in rows])
        for row in range(4):
            for node in range(1, num_nodes):
                if rng.random() < 0.7:  # what is drawn after its parent
                    drawn_BW[row, tree.parents_BW[row, node]] = tree.tokens_BW[row, node]
        room = [rng.choice((0, 1, 2, num_nodes // 2, num_nodes, num_nodes + 9)) for _ in rows]
        path, kept = walk(tree, drawn_BW, torch.tensor(room), num_steps)
        for row in range(4):
            wanted = walked(tree, drawn_BW[row].tolist(), room[row], row)
            lengths.add(len(wanted))
            padded = wanted + wanted[-1:] * (num_steps + 1 - len(wanted))
            assert (path[row].tolist(), int(kept[row])) == (padded, len(wanted) - 1)
    assert len(lengths) > 1


def by_hand(tokens: list[int], parents: list[int]) -> Nodes:
    nothing = torch.zeros(1, len(tokens), dtype=torch.int64)
    return Nodes(torch.tensor([tokens]), torch.tensor([parents]), nothing, nothing)


def test_a_child_of_another_parent_is_not_kept() -> None:
    """After 5 comes 7, but only 6 has a child 7."""
    tree = by_hand([1, 5, 6, 7, 8], [-1, 0, 0, 2, 1])
    path, kept = walk(tree, torch.tensor([[5, 7, 7, 9, 9]]), torch.tensor([9]), 2)
    assert (path.tolist(), kept.tolist()) == ([[0, 1, 1]], [1])
    path, kept = walk(tree, torch.tensor([[6, 7, 7, 9, 9]]), torch.tensor([9]), 2)
    assert (path.tolist(), kept.tolist()) == ([[0, 2, 3]], [2])


def test_of_equal_children_the_first_is_kept() -> None:
    tree = by_hand([1, 5, 5, 6, 7], [-1, 0, 0, 1, 2])
    path, kept = walk(tree, torch.tensor([[5, 6, 7, 9, 9]]), torch.tensor([9]), 2)
    assert (path.tolist(), kept.tolist()) == ([[0, 1, 3]], [2])


def test_where_nothing_is_proposed_nothing_is_kept() -> None:
    """Not even where the target has drawn no token. Behind such a candidate the draft's tokens are garbage."""
    nothing = torch.full((1, 2), -1)
    level, beam = first_level(nothing, torch.zeros(1, 2))
    level, _ = next_level(level, beam, torch.tensor([[[3, 4], [5, 6]]]), torch.zeros(1, 2, 2), 2)
    tree = best_tree(torch.tensor([9]), level, 2, 2, 7)
    assert tree.tokens_BW.tolist() == [[9, -1, -1, 3, 4, 5, 6]]
    for drawn in ([-1] * 7, [3] * 7, [0] * 7):
        path, kept = walk(tree, torch.tensor([drawn]), torch.tensor([9]), 2)
        assert (path.tolist(), kept.tolist()) == ([[0, 0, 0]], [0])


def test_an_empty_tree_keeps_nothing() -> None:
    tree = empty_tree(torch.tensor([9, 8]), 4)
    for drawn in (-1, 0, 8):
        _, kept = walk(tree, torch.full((2, 4), drawn), torch.tensor([9, 9]), 3)
        assert kept.tolist() == [0, 0]
    assert tree.tokens_BW[:, 0].tolist() == [9, 8] and tree.bits_BW.tolist() == [[1, 3, 5, 9]] * 2


def test_scores_that_are_not_numbers_are_the_lowest() -> None:
    """So a tree still has the parents of its nodes."""
    logits = torch.tensor([[0.0, 3.0, 1.0, -torch.inf], [0.0, torch.nan, 1.0, 2.0]])
    tokens, log_p = best_tokens(logits, 2)
    assert tokens[0].tolist() == [1, 2] and torch.isneginf(log_p[1]).all()
    assert torch.allclose(log_p[0], torch.log_softmax(logits[0], -1)[[1, 2]])
    level, beam = first_level(*best_tokens(logits[:1], 2))
    after, scores = best_tokens(logits[1:], 2)
    level, _ = next_level(level, beam, after.expand(1, 2, 2), scores.expand(1, 2, 2), 2)
    tree = best_tree(torch.tensor([9]), level, 2, 2, 4)
    assert tree.parents_BW.tolist() == [[-1, 0, 0, 1]]


def test_no_rows_make_no_trees() -> None:
    nothing = torch.empty(0, 3)
    level, beam = first_level(nothing.long(), nothing)
    level, _ = next_level(level, beam, torch.empty(0, 3, 3).long(), torch.empty(0, 3, 3), 2)
    tree = best_tree(torch.empty(0).long(), level, 3, 2, 5)
    path, kept = walk(tree, torch.empty(0, 5).long(), torch.empty(0).long(), 2)
    assert path.shape == (0, 3) and kept.shape == (0,) and tree.bits_BW.shape == (0, 5)
