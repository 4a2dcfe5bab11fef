"""What a draft needs for its next step passes from launch to launch: of the row's present owner, and of this step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scheduler.execution.future_map import NO_PROPOSAL, DraftExtras, FutureMap
from scheduler.execution.future_rows import OWNER_SHIFT
from tests.scheduler.building import CPU, ids


def of(*owner_numbers: int) -> Tensor:
    return ids(*[owner_number << OWNER_SHIFT for owner_number in owner_numbers])


def extras(*tops: int, **left_out: None) -> DraftExtras:
    """Three kinds for each row: two proposals from `top` on, their probabilities, a hidden feature of size 3."""
    values: dict[str, Any] = {
        "topk_index_NK": torch.tensor([[top, top + 1] for top in tops]),
        "topk_p_NK": torch.tensor([[0.5, top / 100] for top in tops]),
        "hidden_NE": torch.tensor([[float(top)] * 3 for top in tops]),
    }
    return DraftExtras(**{**values, **left_out})


def stashed(future_map: FutureMap, tops: dict[int, int], owner_number: int = 1, **left_out: None) -> None:
    """A launch stashes tokens and extras by row."""
    owners = of(*[owner_number] * len(tops))
    future_map.stash(ids(*tops), ids(*tops), owners, extras(*tops.values(), **left_out))


def proposals(future_map: FutureMap, rows: list[int], owner_number: int = 1) -> list[int]:
    """The first proposal of each row."""
    topk_index_NK = future_map.resolve_extras(ids(*rows), of(*[owner_number] * len(rows))).topk_index_NK
    assert topk_index_NK is not None
    return topk_index_NK[:, 0].tolist()


@pytest.fixture
def future_map() -> FutureMap:
    return FutureMap(8, CPU, debug=True)


def test_each_row_gets_what_was_stashed_for_it(future_map: FutureMap) -> None:
    stashed(future_map, {3: 30, 7: 70})
    resolved = future_map.resolve_extras(ids(7, 3), of(1, 1))
    for name, value in extras(70, 30).present:
        assert torch.equal(getattr(resolved, name), value), name
        assert getattr(resolved, name).dtype == value.dtype


def test_a_buffer_is_made_by_the_first_payload_that_carries_it(future_map: FutureMap) -> None:
    future_map.stash(ids(2), ids(5), of(1))
    assert future_map._extras == {}
    stashed(future_map, {2: 20}, topk_p_NK=None, hidden_NE=None)
    assert {name: buffer.values.shape for name, buffer in future_map._extras.items()} == {"topk_index_NK": (8, 2)}
    with torch.inference_mode():  # as a launch does
        stashed(future_map, {2: 20})
    shapes = {name: tuple(buffer.values.shape) for name, buffer in future_map._extras.items()}
    assert shapes == {"topk_index_NK": (8, 2), "topk_p_NK": (8, 2), "hidden_NE": (8, 3)}
    stashed(future_map, {4: 40})  # outside of it, as a seed of PREBUILT rows may be
    assert proposals(future_map, [2, 4]) == [20, 40]


def test_before_the_first_payload_nothing_is_proposed() -> None:
    extras = FutureMap(8, CPU).resolve_extras(ids(2, 3), of(1, 1))
    assert extras.topk_index_NK is not None and extras.topk_index_NK.tolist() == [[NO_PROPOSAL], [NO_PROPOSAL]]
    assert extras.topk_index_NK.dtype == torch.int64
    assert (extras.topk_p_NK, extras.hidden_NE) == (None, None)


def test_extras_that_come_later_than_the_first_decode() -> None:
    future_map = FutureMap(8, CPU, debug=True)
    future_map.stash(ids(2, 3), ids(5, 6), of(1, 1))  # a prefill without extras
    assert proposals(future_map, [2, 3]) == [NO_PROPOSAL, NO_PROPOSAL]
    stashed(future_map, {2: 20})
    future_map.stash(ids(3), ids(6), of(1))
    assert proposals(future_map, [2, 3]) == [20, NO_PROPOSAL]


def test_a_payload_that_lacks_an_extra_leaves_that_buffer_as_it_was(future_map: FutureMap) -> None:
    stashed(future_map, {2: 20, 3: 30})
    stashed(future_map, {2: 22}, hidden_NE=None)
    extras = future_map.resolve_extras(ids(2, 3), of(1, 1))
    assert extras.topk_index_NK is not None and extras.hidden_NE is not None
    assert extras.topk_index_NK[:, 0].tolist() == [22, 30]
    assert extras.hidden_NE[:, 0].tolist() == [20, 30]


def test_a_partial_payload_is_not_completed_by_the_former_owner(future_map: FutureMap) -> None:
    stashed(future_map, {2: 20}, owner_number=1)
    stashed(future_map, {2: 22}, owner_number=2, hidden_NE=None)
    extras = future_map.resolve_extras(ids(2), of(2))
    assert extras.topk_index_NK is not None and extras.hidden_NE is not None
    assert extras.topk_index_NK.tolist() == [[NO_PROPOSAL, NO_PROPOSAL]]  # without its hidden state it would be garbage
    assert extras.hidden_NE.tolist() == [[0, 0, 0]]


def test_another_owners_hidden_state_is_never_seen(future_map: FutureMap) -> None:
    stashed(future_map, {2: 20, 3: 30}, owner_number=1)
    future_map.stash(ids(2), ids(9), of(2))  # a resumed row: a token and no extras
    extras = future_map.resolve_extras(ids(2, 3), of(2, 1))
    assert [value.tolist() for value in extras.tensors] == [
        [[NO_PROPOSAL, NO_PROPOSAL], [30, 31]],
        [[0, 0], [0.5, pytest.approx(0.3)]],
        [[0, 0, 0], [30, 30, 30]],
    ]


def test_a_late_stash_of_the_former_owner_is_not_taken_for_the_present_ones(future_map: FutureMap) -> None:
    future_map.stash_extras(ids(2), extras(22), of(2))  # PREBUILT
    stashed(future_map, {2: 20}, owner_number=1)  # the launch in flight when the first owner finished
    assert proposals(future_map, [2], owner_number=2) == [NO_PROPOSAL]


@pytest.mark.parametrize("debug", [True, False])
def test_proposals_are_those_of_one_step(debug: bool) -> None:
    """A step that stashes none, such as one that has failed, is followed by a step without a draft."""
    future_map = FutureMap(8, CPU, debug)
    stashed(future_map, {2: 20, 3: 30})
    assert proposals(future_map, [2]) == [20]
    future_map.stash(ids(2), ids(5), of(1))
    assert proposals(future_map, [2, 3]) == [NO_PROPOSAL, 30]
    stashed(future_map, {2: 22})
    assert proposals(future_map, [2]) == [22]


def test_prebuilt_rows_are_given_extras_and_no_token(future_map: FutureMap) -> None:
    before = future_map.output_tokens_buf.clone()
    future_map.stash_extras(ids(5), extras(50), of(3))
    assert torch.equal(future_map.output_tokens_buf, before)
    assert proposals(future_map, [5], owner_number=3) == [50]


def test_one_row_and_padding(future_map: FutureMap) -> None:
    stashed(future_map, {1: 10})
    for _ in range(2):  # row 0 is padding, and may be named again and again
        future_map.resolve_extras(ids(0, 0), of(0, 0))
        future_map.stash_extras(ids(0, 0), extras(3, 4), of(0, 0))
    assert proposals(future_map, [1]) == [10]


def test_what_was_resolved_does_not_change() -> None:
    future_map = FutureMap(8, CPU)
    stashed(future_map, {1: 10})
    extras = future_map.resolve_extras(ids(1), of(1))
    stashed(future_map, {1: 50})
    assert extras.hidden_NE is not None and extras.hidden_NE.tolist() == [[10, 10, 10]]
