"""Every message of every boundary crosses it and comes back equal; no boundary takes a message of another."""

from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings

from protocol.errors import WireError
from protocol.message import VERSION, Boundary
from protocol.messages_gateway import TO_WORKER, Assign, SamplingParams
from tests.protocol.values import BOUNDARIES, KINDS, name, values_of


@pytest.mark.parametrize("boundary,kind", KINDS, ids=name)
def test_round_trip(boundary: Boundary[Any], kind: type[Any]) -> None:
    @settings(max_examples=20)
    @given(values_of(kind))
    def check_round_trip(message: Any) -> None:
        raw = boundary.encode(message)
        back = boundary.decode(raw)
        assert back == message and type(back) is kind
        for field in fields(message):
            assert type(getattr(back, field.name)) is type(getattr(message, field.name))

    check_round_trip()


@pytest.mark.parametrize("boundary,kind", KINDS, ids=name)
def test_another_boundary_refuses_it_by_name(boundary: Boundary[Any], kind: type[Any]) -> None:
    raw: bytes = msgpack.packb([VERSION, kind.__name__, {}])
    for other, kinds in BOUNDARIES:
        if kind not in kinds:
            with pytest.raises(WireError, match=f"{other.name}: unknown message '{kind.__name__}'"):
                other.decode(raw)


@pytest.mark.parametrize("kinds", [kinds for _, kinds in BOUNDARIES], ids=[b.name for b, _ in BOUNDARIES])
def test_messages_are_frozen_and_documented(kinds: tuple[type[Any], ...]) -> None:
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind
        assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("), kind


def test_seeds_use_all_64_bits() -> None:
    for seed in (0, -1, -(2**63), 2**63, 2**64 - 1):
        assign = Assign("r", 0, (1,), SamplingParams(1, seed=seed), 1, None)
        assert TO_WORKER.decode(TO_WORKER.encode(assign)) == assign


@pytest.mark.parametrize("prompt,most,replayed,expected", [(7, 1, 0, (1, 7)), (7, 2, 0, (2, 8)), (9, 20, 4, (16, 24))])
def test_the_last_output_needs_no_kv(prompt: int, most: int, replayed: int, expected: tuple[int, int]) -> None:
    assign = Assign("r", 0, (1,) * prompt, SamplingParams(most), 1, None, num_replayed=replayed)
    assert (assign.num_left, assign.num_tokens) == expected
