from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.sampling_input import Banned
from protocol.messages_gateway import FinishReason, SamplingParams
from scheduler.execution.sampling_columns import SamplingColumns
from scheduler.execution.streams import InlineStream
from scheduler.plan import Draw
from tests.scheduler.building import CPU, draw, make_pair, make_req


def bound(banned: Banned | None) -> dict[int, tuple[set[int], int]]:
    """By row: the tokens that it may not draw, and the position from which it may."""
    if banned is None:
        return {}
    columns = (banned.rows_N.tolist(), banned.ids_NE.tolist(), banned.until_N.tolist())
    return {row: (set(ids) - {-1}, until) for row, ids, until in zip(*columns, strict=True)}


def banned_at(columns: SamplingColumns, *lengths: int) -> Banned | None:
    """The bans of a launch with contexts of these lengths."""
    return columns.input(torch.tensor(lengths), np.array(lengths)).banned


@pytest.mark.parametrize(
    "seed,expected",
    [
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        (2**63, -(2**63)),
        (2**64 - 1, -1),
        (-1, -1),
        (-(2**63), -(2**63)),
        (0x8000000000000001, -(2**63) + 1),
    ],
)
def test_a_64_bit_seed_keeps_its_bits(seed: int, expected: int) -> None:
    columns = SamplingColumns.of([draw(sampling=SamplingParams(4, seed=seed))], CPU)
    assert (columns.params.seed_L.tolist(), columns.params.seed_L.dtype) == ([expected], torch.int64)


def test_columns_follow_take_and_concat() -> None:
    draws = [
        draw(
            sampling=SamplingParams(4, temperature=0.5 * i, top_k=i, top_p=1 - i / 8, min_p=i / 16, seed=i),
            choice=i,
        )
        for i in range(4)
    ]
    all_four = SamplingColumns.of(draws[:1], CPU).concat(SamplingColumns.of(draws[1:], CPU))
    both = all_four.take([3, 1])
    assert both.draws == [draws[3], draws[1]]
    assert both.params.temperature_L.tolist() == [1.5, 0.5]
    assert both.params.top_k_L.tolist() == both.params.seed_L.tolist() == both.params.choice_L.tolist() == [3, 1]
    assert both.params.top_p_L.tolist() == [1 - 3 / 8, 1 - 1 / 8]
    assert both.params.min_p_L.tolist() == [3 / 16, 1 / 16]


@pytest.mark.parametrize("field,value", [("top_k", 3), ("top_p", 0.9), ("min_p", 0.1)])
def test_the_rows_that_ask_are_named(field: str, value: float) -> None:
    plain = draw(sampling=SamplingParams(4))
    asks = draw(sampling=SamplingParams(4, **{field: value}))  # type: ignore[arg-type]
    names = ["top_k_N", "top_p_N", "min_p_N"]
    of_plain = SamplingColumns.of([plain, plain], CPU).asking._asdict()
    assert [of_plain[name] for name in names] == [None, None, None]
    of_both = SamplingColumns.of([plain, asks, plain, asks], CPU).asking._asdict()
    rows = {name: of_both[name].tolist() for name in names if of_both[name] is not None}
    assert rows == {f"{field}_N": [1, 3]}
    columns = SamplingColumns.of([plain, asks], CPU).take([1])
    rows_N = getattr(columns.input(torch.tensor([4]), np.array([4])).asking, f"{field}_N")
    assert rows_N.tolist() == [0]


def test_all_greedy_needs_all() -> None:
    cold, hot = (draw(sampling=SamplingParams(4, temperature=t)) for t in (0.0, 0.7))
    assert SamplingColumns.of([cold, cold], CPU).asking.all_greedy
    assert not SamplingColumns.of([cold, hot], CPU).asking.all_greedy
    assert SamplingColumns.of([], CPU).asking == (None, None, None, True)


def test_endings_are_banned_until_the_context_is_long_enough() -> None:
    params = SamplingParams(9, min_tokens=2, stop_token_ids=(8,), eos_token_ids=(3, 5))
    draws = [draw(sampling=SamplingParams(9, eos_token_ids=(1,)), until=5), draw(sampling=params, until=5)]
    columns = SamplingColumns.of(draws, CPU)
    assert bound(columns.bans[0]) == {1: ({3, 5, 8}, 5)}
    for length in (3, 4):  # outputs 1 and 2 follow contexts of 3 and 4 tokens
        assert banned_at(columns, 50, length) is columns.bans[0]
    assert banned_at(columns, 3, 5) is None
    assert SamplingColumns.of(draws[:1], CPU).bans == SamplingColumns.of((), CPU).bans == (None, ())


def test_a_row_without_min_tokens_is_never_banned() -> None:
    """Its `until` is the length of its prompt, and a longer prompt beside it asks for a ban."""
    asks = draw(sampling=SamplingParams(9, min_tokens=1, stop_token_ids=(8,)), until=5)
    none = draw(sampling=SamplingParams(9, stop_token_ids=(7,)), until=9)
    assert bound(banned_at(SamplingColumns.of([none, asks], CPU), 4, 4)) == {1: ({8}, 5)}


def test_ignored_eos_is_not_banned() -> None:
    params = SamplingParams(9, min_tokens=1, stop_token_ids=(8,), eos_token_ids=(3,), ignore_eos=True)
    assert bound(SamplingColumns.of([draw(sampling=params, until=4)], CPU).bans[0]) == {0: ({8}, 4)}


def test_endings_that_no_vocabulary_has_ban_nothing() -> None:
    params = SamplingParams(9, min_tokens=1, stop_token_ids=(-1, 2**40))
    banned, _ = SamplingColumns.of([draw(sampling=params, until=4)], CPU).bans
    assert banned is not None and (banned.ids_NE.shape, banned.ids_NE.dtype) == ((1, 0), torch.int64)


def test_the_samplers_input_carries_the_positions() -> None:
    draws = [draw(sampling=SamplingParams(9, min_tokens=1, stop_token_ids=(8,)), until=8), draw(choice=1)]
    columns, lengths = SamplingColumns.of(draws, CPU), np.array([7, 9])
    got = columns.input(torch.from_numpy(lengths), lengths)
    assert got.position_L.tolist() == [7, 9]
    assert got.params.choice_L.tolist() == [0, 1]
    assert got.banned is columns.bans[0] is not None
    assert columns.input(torch.from_numpy(lengths + 1), lengths + 1).banned is None


Joining = list[tuple[int, list[int]]]  # min_tokens and stop_token_ids of those that join
JOINING = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=4)), max_size=4)


@given(st.lists(st.tuples(JOINING, st.integers(0, 2**12)), min_size=1, max_size=6))
def test_endings_that_joined_and_left_are_those_of_who_is_there(changes: list[tuple[Joining, int]]) -> None:
    """Some join and some leave, again and again: the same as if the endings were made from the draws at the end."""
    draws: list[Draw] = []
    columns = SamplingColumns.of(draws, CPU)
    for joining, leave in changes:
        new = [
            draw(sampling=SamplingParams(9, min_tokens=least, stop_token_ids=tuple(ids)), until=1 + index + least)
            for index, (least, ids) in enumerate(joining)
        ]
        columns, draws = columns.concat(SamplingColumns.of(new, CPU)), draws + new
        keep = [index for index in reversed(range(len(draws))) if not leave >> index % 12 & 1]
        columns, draws = columns.take(keep), [draws[index] for index in keep]
        (banned, until), (afresh, _) = columns.bans, SamplingColumns.of(draws, CPU).bans
        assert bound(banned) == bound(afresh)
        assert {row: length for row, (_, length) in bound(banned).items()} == dict(until)


class CountedIds(frozenset[int]):
    """A set of ids that counts how often it is iterated."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        type(self).walks += 1
        return super().__iter__()


def shared_params(ids: Sequence[int]) -> SamplingParams:
    """Greedy parameters whose set of endings is counted."""
    params = SamplingParams(50, min_tokens=40, temperature=0.0, stop_token_ids=tuple(ids))
    params.__dict__["ending_ids"] = CountedIds(ids)  # where the cached property keeps it
    return params


def test_endings_are_looked_at_when_somebody_joins_and_never_for_a_step() -> None:
    CountedIds.walks = 0
    executor, planner = make_pair(InlineStream(), debug=False)
    params = shared_params(range(1, 90))
    choices = [make_req(sampling=params, choice=choice) for choice in range(3)]
    assert planner.admit(choices, 40)
    for req in choices:
        req.num_sampled = 1
        req.append((95,))
    planner.join(choices)
    seen = []
    for _ in range(8):
        planner.launch((), planner.decodes())
        batch = executor.launches[-1].batch
        assert batch is not None and batch.sampling.banned is not None
        seen.append(batch.sampling.banned)
        ((_, result),) = planner.poll()
        tokens = [token for run in result.tokens for token in run]
        assert result.error == "" and len(tokens) == 3 and not set(tokens) & params.ending_ids
    assert CountedIds.walks == 1 and all(banned is seen[0] for banned in seen)  # choices share the list
    choices[1].finish = FinishReason.CANCELLED
    planner.launch((), planner.decodes())
    ((_, result),) = planner.poll()
    assert result.error == "" and len(result.rows) == 2
    assert CountedIds.walks == 1
    executor.close()
