from collections.abc import Sequence

import pytest
import torch

from protocol.errors import InternalError
from scheduler.execution.batches import ScheduleBatch
from scheduler.execution.future_map import POISON, FutureMap
from scheduler.execution.future_rows import OWNER_SHIFT
from scheduler.plan import Join
from tests.scheduler.building import CPU, draw, ids


def of(*owner_numbers: int) -> torch.Tensor:
    return ids(*[owner_number << OWNER_SHIFT for owner_number in owner_numbers])


def stashed(future_map: FutureMap, rows: Sequence[int], tokens: Sequence[int], owner_number: int = 1) -> None:
    future_map.stash(ids(*rows), ids(*tokens), of(*[owner_number] * len(rows)))


@pytest.fixture
def future_map() -> FutureMap:
    return FutureMap(4, CPU, debug=True)


def test_ids_and_sentinels_mix() -> None:
    future_map = FutureMap(8, CPU, debug=True)
    stashed(future_map, [2, 4], [20, 40])
    # two prompt tokens, then three decodes: the second of them joined with a token that the host knows
    assert future_map.resolve_future(ids(11, 0, -4, 55, -2), of(1, 9, 1)).tolist() == [11, 0, 40, 55, 20]


@pytest.mark.parametrize("tokens", [torch.tensor([[5], [6]], dtype=torch.int32), torch.tensor([5, 6])])
def test_tokens_of_any_integer_dtype_and_of_shape_n_1(tokens: torch.Tensor) -> None:
    future_map = FutureMap(4, CPU, debug=True)
    future_map.stash(ids(1, 2), tokens, of(1, 1))
    resolved = future_map.resolve_future(ids(-1, -2), of(1, 1))
    assert resolved.tolist() == [5, 6]
    assert (resolved.shape, resolved.dtype) == ((2,), torch.int64)


@pytest.mark.parametrize("row", [1, 2, 3])
def test_one_element_batches(row: int, future_map: FutureMap) -> None:
    future_map.stash(ids(row), torch.tensor([[9]], dtype=torch.int32), of(4))
    assert future_map.resolve_future(ids(-row), of(4)).tolist() == [9]
    others = [other for other in (1, 2, 3) if other != row]
    assert future_map.output_tokens_buf[others].tolist() == [POISON, POISON]


@pytest.mark.parametrize("debug", [True, False])
def test_a_row_that_was_never_written_is_caught(debug: bool) -> None:
    future_map = FutureMap(4, CPU, debug=debug)
    stashed(future_map, [1], [5])
    with pytest.raises(InternalError, match=r"rows \[3\], which no launch has stashed"):
        future_map.resolve_future(ids(-1, -3), of(1, 1))


def test_a_second_gather_without_a_stash_between_is_caught() -> None:
    future_map = FutureMap(4, CPU, debug=True)
    stashed(future_map, [2], [5])
    assert future_map.resolve_future(ids(-2), of(1)).tolist() == [5]
    with pytest.raises(InternalError, match=r"rows \[2\]"):
        future_map.resolve_future(ids(-2), of(1))
    stashed(future_map, [2], [6])
    assert future_map.resolve_future(ids(-2), of(1)).tolist() == [6]


@pytest.mark.parametrize("debug", [True, False])
def test_a_token_of_the_rows_former_owner_is_caught(debug: bool) -> None:
    future_map = FutureMap(4, CPU, debug=debug)
    stashed(future_map, [2], [5], owner_number=1)
    with pytest.raises(InternalError, match="row 2 of owner 2 holds a token of owner 1"):
        future_map.resolve_future(ids(-2), of(2))


@pytest.mark.parametrize("debug", [True, False])
def test_a_redundant_stash_of_the_former_owner_is_caught_too(debug: bool) -> None:
    future_map = FutureMap(4, CPU, debug=debug)
    stashed(future_map, [2], [5], owner_number=2)
    stashed(future_map, [2], [4], owner_number=1)  # the launch in flight when the first owner finished
    with pytest.raises(InternalError, match="of owner 2 holds a token of owner 1"):
        future_map.resolve_future(ids(-2), of(2))


def test_a_stash_that_nobody_read_may_be_superseded() -> None:
    future_map = FutureMap(4, CPU, debug=True)
    stashed(future_map, [2], [5])
    stashed(future_map, [2], [6])
    assert future_map.resolve_future(ids(-2), of(1)).tolist() == [6]


def test_row_zero_is_padding_and_may_be_read_and_written_at_will(future_map: FutureMap) -> None:
    for _ in range(2):
        assert future_map.resolve_future(ids(0, 0), of(0, 0)).tolist() == [0, 0]
    stashed(future_map, [0, 0], [3, 4], owner_number=0)
    assert future_map.resolve_future(ids(0), of(7)).tolist() == [0]  # -0 is 0: an id, not a sentinel


@pytest.mark.parametrize("token", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("owner_number", [1, 2**31 - 2])
def test_tokens_and_owners_of_any_size_come_back(token: int, owner_number: int) -> None:
    future_map = FutureMap(4, CPU)
    stashed(future_map, [2], [token], owner_number=owner_number)
    assert future_map.resolve_future(ids(5, -2), of(owner_number)).tolist() == [5, token]
    with pytest.raises(InternalError, match=f"of owner {owner_number + 1} holds a token of owner {owner_number}"):
        future_map.resolve_future(ids(-2), of(owner_number + 1))


def test_a_prompt_token_poisons_nothing() -> None:
    future_map = FutureMap(4, CPU, debug=True)
    stashed(future_map, [1, 2], [5, 6])
    assert future_map.resolve_future(ids(1, 2), of()).tolist() == [1, 2]
    assert future_map.resolve_future(ids(-1, -2), of(1, 1)).tolist() == [5, 6]


def test_resolving_changes_neither_its_argument_nor_what_was_resolved_before() -> None:
    future_map = FutureMap(4, CPU)
    stashed(future_map, [1], [5])
    given = ids(-1)
    resolved = future_map.resolve_future(given, of(1))
    stashed(future_map, [1], [6])
    assert (given.tolist(), resolved.tolist()) == ([-1], [5])


def test_buffer_rows_are_pool_rows_and_there_is_no_ring() -> None:
    future_map = FutureMap(5, CPU, debug=True)
    assert future_map.output_tokens_buf.shape == (5,)
    stashed(future_map, [4], [8])
    for token in range(20):  # other rows come and go; row 4 keeps what it was given
        stashed(future_map, [1, 2, 3], [token] * 3)
        assert future_map.resolve_future(ids(-1, -2, -3), of(*[1] * 3)).tolist() == [token] * 3
    assert future_map.resolve_future(ids(-4), of(1)).tolist() == [8]


def test_the_sentinel_is_minus_the_row_in_a_new_tensor() -> None:
    batch = ScheduleBatch.of([Join(draw(row), 3, 40 + row) for row in (5, 2)], CPU)
    held = batch.input_ids_B
    batch.set_input_ids_sentinel()
    assert (batch.input_ids_B.tolist(), held.tolist()) == ([-5, -2], [45, 42])
