from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.sampler import Banned
from protocol.request import SamplingParams
from scheduler.forward_batch import LaunchPlan
from scheduler.req import Req
from scheduler.sampling_columns import Endings, SamplingColumns, asking_rows
from scheduler.schedule_batch import ScheduleBatch
from scheduler.streams_host import InlineStream
from tests.scheduler.building import CPU, admitted, make_engine, make_req


def bound(banned: Banned | None) -> dict[int, tuple[set[int], int]]:
    """By row: the tokens that it may not draw, and the position from which it may."""
    if banned is None:
        return {}
    columns = (banned.rows_N.tolist(), banned.ids_NE.tolist(), banned.until_N.tolist())
    return {row: (set(ids) - {-1}, until) for row, ids, until in zip(*columns, strict=True)}


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
    columns = SamplingColumns.of([make_req(sampling=SamplingParams(4, seed=seed))], CPU)
    assert (columns.params.seed_L.tolist(), columns.params.seed_L.dtype) == ([expected], torch.int64)


def test_columns_follow_take_and_concat() -> None:
    reqs = [
        make_req(sampling=SamplingParams(4, temperature=0.5 * i, top_k=i, top_p=1 - i / 8, min_p=i / 16, seed=i))
        for i in range(4)
    ]
    for choice, req in enumerate(reqs):
        req.choice = choice
    all_four = SamplingColumns.of(reqs[:1], CPU).concat(SamplingColumns.of(reqs[1:], CPU), reqs)
    both = all_four.take([3, 1], [reqs[3], reqs[1]])
    assert both.params.temperature_L.tolist() == [1.5, 0.5]
    assert both.params.top_k_L.tolist() == both.params.seed_L.tolist() == both.params.choice_L.tolist() == [3, 1]
    assert both.params.top_p_L.tolist() == [1 - 3 / 8, 1 - 1 / 8]
    assert both.params.min_p_L.tolist() == [3 / 16, 1 / 16]


@pytest.mark.parametrize("field,value", [("top_k", 3), ("top_p", 0.9), ("min_p", 0.1)])
def test_the_rows_that_ask_are_named(field: str, value: float) -> None:
    plain = make_req(sampling=SamplingParams(4))
    asks = make_req(sampling=SamplingParams(4, **{field: value}))  # type: ignore[arg-type]
    names = ["top_k_N", "top_p_N", "min_p_N"]
    of_plain = asking_rows([plain, plain], CPU)._asdict()
    assert [of_plain[name] for name in names] == [None, None, None]
    of_both = asking_rows([plain, asks, plain, asks], CPU)._asdict()
    found = {name: of_both[name].tolist() for name in names if of_both[name] is not None}
    assert found == {f"{field}_N": [1, 3]}
    columns = SamplingColumns.of([plain, asks], CPU).take([1], [asks])
    rows_N = getattr(columns.input([asks], torch.tensor([4])).asking, f"{field}_N")
    assert rows_N.tolist() == [0]


def test_all_greedy_needs_all() -> None:
    cold, hot = (make_req(sampling=SamplingParams(4, temperature=t)) for t in (0.0, 0.7))
    assert asking_rows([cold, cold], CPU).all_greedy
    assert not asking_rows([cold, hot], CPU).all_greedy


def test_endings_are_banned_until_min_tokens_is_launched() -> None:
    params = SamplingParams(9, min_tokens=2, stop_token_ids=(8,), eos_token_ids=(3, 5))
    reqs = [make_req(sampling=SamplingParams(9, eos_token_ids=(1,))), make_req((1, 2, 3), sampling=params)]
    endings = Endings.of(reqs, CPU)
    assert bound(endings.banned) == {1: ({3, 5, 8}, 5)}
    for num_sampled in (0, 1):
        reqs[1].num_sampled = num_sampled
        assert endings.for_launch(reqs) is endings.banned
    reqs[1].num_sampled = 2
    assert endings.for_launch(reqs) is None
    assert Endings.of(reqs, CPU).rows == ()


def test_outputs_of_an_earlier_attempt_count() -> None:
    params = SamplingParams(9, min_tokens=5, stop_token_ids=(8,))
    req = Req("r", 1, 0, (1, 2, 3, 40, 41), params, num_replayed=2)
    assert bound(Endings.of([req], CPU).banned) == {0: ({8}, 3 + 5)}


def test_ignored_eos_is_not_banned() -> None:
    req = make_req(sampling=SamplingParams(9, min_tokens=1, stop_token_ids=(8,), eos_token_ids=(3,), ignore_eos=True))
    assert bound(Endings.of([req], CPU).banned) == {0: ({8}, 4)}


def test_the_samplers_input_carries_the_positions() -> None:
    reqs = [make_req(sampling=SamplingParams(9, min_tokens=1, stop_token_ids=(8,))), make_req(choice=1)]
    columns, position = SamplingColumns.of(reqs, CPU), torch.tensor([7, 9])
    got = columns.input(reqs, position)
    assert got.position_L.tolist() == [7, 9]
    assert got.params.choice_L.tolist() == [0, 1]
    assert got.banned is columns.endings.banned


Joining = list[tuple[int, list[int]]]  # min_tokens and stop_token_ids of those that join
JOINING = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=4)), max_size=4)


@given(st.lists(st.tuples(JOINING, st.integers(0, 2**12)), min_size=1, max_size=6))
def test_endings_that_joined_and_left_are_those_of_who_is_there(changes: list[tuple[Joining, int]]) -> None:
    """Some join and some leave, again and again: the same as if the endings were made from the requests at the end."""
    reqs: list[Req] = []
    endings = Endings.of(reqs, CPU)
    for joining, leave in changes:
        new = [
            make_req(tuple(range(1, 2 + index)), SamplingParams(9, min_tokens=least, stop_token_ids=tuple(ids)))
            for index, (least, ids) in enumerate(joining)
        ]
        endings, reqs = endings.concat(Endings.of(new, CPU), len(reqs)), reqs + new
        keep = [index for index in reversed(range(len(reqs))) if not leave >> index % 12 & 1]
        endings, reqs = endings.take(keep), [reqs[index] for index in keep]
        assert bound(endings.banned) == bound(Endings.of(reqs, CPU).banned)
        assert sorted(endings.rows) == sorted(bound(endings.banned))


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
    engine = make_engine(InlineStream(), debug=False)
    params = shared_params(range(1, 90))
    choices = [admitted(engine, sampling=params, name=f"r{index}") for index in range(3)]
    for req in choices:
        req.append(95)
        req.num_sampled = 1
    running = ScheduleBatch.prebuilt(choices, CPU)
    assert CountedIds.walks == 1  # choices share the list
    seen = []
    for _ in range(8):
        launch = engine.launch(LaunchPlan((), running))
        assert launch.batch.sampling is not None and launch.batch.sampling.banned is not None
        seen.append(launch.batch.sampling.banned)
        tokens = [token for _, token in engine.tokens(launch)]
        assert engine.take_completed() is launch and launch.error is None
        assert len(tokens) == 3 and not set(tokens) & params.ending_ids
    assert CountedIds.walks == 1 and all(banned is seen[0] for banned in seen)
    running.filter([2, 0])
    assert engine.launch(LaunchPlan((), running)).error is None
    assert CountedIds.walks == 1
    engine.close()
