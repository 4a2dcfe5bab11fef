"""When ranks may launch: every state, and every message that cannot be true."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import GroupBroken
from protocol.messages_group import StepRow, StepShape
from scheduler.agreement import PADDED_ROWS, Agreement, wants_graph


def group(size: int) -> list[Agreement]:
    """The ranks of a group."""
    return [Agreement(1, rank, size) for rank in range(size)]


def deliver(ranks: list[Agreement], sender: int, receiver: int, count: int) -> None:
    """The receiver takes the sender's row number `count`."""
    ranks[receiver].take(ranks[sender].outgoing[count])


def test_a_rank_announces_each_step_once() -> None:
    rank = group(2)[0]
    for step in (1, 2):
        assert not rank.is_announced
        rank.announce(7)
        with pytest.raises(AssertionError, match=f"step {step} is announced already"):
            rank.announce(7)
        assert rank.is_announced and not rank.is_called
        with pytest.raises(AssertionError, match=f"step {step} is not agreed"):
            rank.launched()
        rank.take(StepRow(1, step, 1, 0))
        rank.launched()
    assert [row.step for row in rank.outgoing] == [1, 2]


def test_a_step_is_agreed_when_all_ranks_have_announced_it() -> None:
    """An idle rank is called; all ranks make the same shape."""
    first, second, third = ranks = group(3)
    assert not any(rank.is_called for rank in ranks)

    first.announce(5)
    assert first.missing == (1, 2) and not first.is_called
    deliver(ranks, 0, 1, 0)
    assert second.is_called and second.missing == (1, 2)
    second.announce(0, wants_graph=True)
    assert not second.is_called and second.missing == (2,)
    third.announce(2, wants_graph=True)
    deliver(ranks, 0, 2, 0)

    for sender, receiver in ((1, 0), (2, 0), (2, 1), (1, 2)):
        assert ranks[receiver].shape is None
        deliver(ranks, sender, receiver, 0)
    assert {rank.shape for rank in ranks} == {StepShape(1, (5, 0, 2), graphs=False)}
    assert first.shape is not None and first.shape.padded == 5


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (StepRow(2, 1, 1, 1), "rank 1 of epoch 2 announced a step to rank 0 of 2 in epoch 1"),
        (StepRow(1, 1, 0, 1), "rank 0 of epoch 1 announced a step to rank 0 of 2"),
        (StepRow(1, 1, 2, 1), "rank 2 of epoch 1 announced"),
        (StepRow(1, 3, 1, 1), "rank 1 announced step 3, but the next one here is 1"),
    ],
)
def test_a_row_that_cannot_be_true_breaks_the_group(row: StepRow, said: str) -> None:
    """The message names step, rank and both values."""
    with pytest.raises(GroupBroken, match=said):
        group(2)[0].take(row)


def test_two_rows_of_one_rank_for_one_step_break_the_group() -> None:
    """The same row twice is no contradiction."""
    rank = group(2)[0]
    rank.take(StepRow(1, 1, 1, 4))
    rank.take(StepRow(1, 1, 1, 4))
    with pytest.raises(GroupBroken, match="step 1 twice: 4 tokens, then 4 tokens by a graph"):
        rank.take(StepRow(1, 1, 1, 4, wants_graph=True))


@given(st.integers(2, 4), st.randoms(use_true_random=False))
def test_any_order_of_messages_gives_every_rank_the_same_steps(size: int, rng: random.Random) -> None:
    """Ranks with work and without, messages that wait for any time: nobody is stuck while somebody has work."""
    ranks, work = group(size), [rng.randint(0, 6) for _ in range(size)]
    links = {(a, b): [0] for a in range(size) for b in range(size) if a != b}  # how many rows have arrived
    shapes: list[list[StepShape]] = [[] for _ in ranks]

    def options() -> list[tuple[str, int, int]]:
        moves = [("row", a, b) for (a, b), (count,) in links.items() if count < len(ranks[a].outgoing)]
        for index, rank in enumerate(ranks):
            if rank.shape is not None:
                moves.append(("launch", index, 0))
            elif not rank.is_announced and (work[index] or rank.is_called):
                moves.append(("announce", index, 0))
        return moves

    while able := options():
        what, rank, to = rng.choice(able)
        if what == "row":
            deliver(ranks, rank, to, links[rank, to][0])
            links[rank, to][0] += 1
        elif what == "announce":
            ranks[rank].announce(rng.randint(1, 9) if work[rank] else 0)
            work[rank] = max(0, work[rank] - 1)
        else:
            shape = ranks[rank].shape
            assert shape is not None
            shapes[rank].append(shape)
            ranks[rank].launched()

    assert not any(work) and all(of_rank == shapes[0] for of_rank in shapes)
    assert all(any(shape.num_tokens) for shape in shapes[0]), "a step in which nobody computes anything"


@given(st.integers(0, 600), st.integers(0, 300), st.integers(1, 9))
def test_a_rank_with_a_prompt_leaves_others_their_graphs_if_the_padding_costs_nothing(
    num_tokens: int, max_graphed: int, num_ranks: int
) -> None:
    decodes, prompts = (
        wants_graph(num_tokens, max_graphed, num_ranks, has_chunks=has_chunks) for has_chunks in (False, True)
    )
    assert decodes == (num_tokens <= max_graphed), "decodes of any number of rows replay a graph that is large enough"
    assert prompts == (decodes and num_tokens * num_ranks <= PADDED_ROWS)


def test_a_short_prompt_of_one_rank_takes_no_graph_from_the_others_and_a_long_one_does() -> None:
    for num_tokens, graphs in ((30, True), (129, False), (2048, False)):
        first, second = group(2)
        first.announce(num_tokens, wants_graph=wants_graph(num_tokens, 256, 2, has_chunks=True))
        second.announce(9, wants_graph=wants_graph(9, 256, 2, has_chunks=False))
        deliver([first, second], 0, 1, 0)
        deliver([first, second], 1, 0, 0)
        assert first.shape == second.shape == StepShape(1, (num_tokens, 9), graphs)
