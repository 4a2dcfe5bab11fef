"""Ids of requests in flight."""

from collections.abc import Callable
from typing import cast

import pytest

from gateway.generation.generation import Generation
from gateway.serving.in_flight import InFlight
from protocol.errors import BadRequest


class Ending:
    """A generation that may end."""

    def __init__(self) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self.aborted: list[range] = []

    def abort(self, choices: range) -> None:
        self.aborted.append(choices)


def begun(in_flight: InFlight, name: str) -> Ending:
    found = Ending()
    in_flight.add(cast(Generation, found), {name: range(1)})
    return found


def test_an_id_is_free_once_its_request_has_ended() -> None:
    in_flight = InFlight()
    first = begun(in_flight, "r")
    with pytest.raises(BadRequest, match="in flight"):
        begun(in_flight, "r")
    first.on_end()
    begun(in_flight, "r")
    assert len(in_flight) == 1


def test_an_end_that_is_told_twice_leaves_the_next_owner_of_the_id_alone() -> None:
    in_flight = InFlight()
    first = begun(in_flight, "r")
    first.on_end()
    second = begun(in_flight, "r")
    first.on_end()
    in_flight.abort("r")
    assert second.aborted == [range(1)] and not first.aborted
