"""Whether a deployment serves and rests, by rows of /workers that a test writes."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from bench.soak import fleet
from bench.soak.fleet import Fleet, by_role
from loadtest.http_exchange import Broken, Server
from tests.doubles.clock import VirtualClock

FREE = {"total": 10, "free": 7, "cached": 3, "owned": 0, "reserved": 0, "quarantined": 0}


def row(role: str, pid: int, heartbeat_age_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    base = {"role": role, "pid": pid, "heartbeat_age_s": heartbeat_age_s, "running": 0, "waiting": 0}
    return {**base, "kv_pages": FREE, "host_pages": FREE, **fields}


PAIR = [row("prefill", 1), row("decode", 2)]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Mapping[str, Any]] | None]:
    """What /workers answers, in order, and the last one again and again; None: nothing answers."""
    pages = list[Sequence[Mapping[str, Any]] | None]()

    async def get(*_arguments: Any, **_fields: Any) -> tuple[int, bytes]:
        now = pages[0] if len(pages) == 1 else pages.pop(0)
        if now is None:
            raise Broken("cut off")
        return 200, orjson.dumps(now)

    monkeypatch.setattr(fleet, "get", get)
    return pages


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Time moves by the pauses between two looks."""
    virtual = VirtualClock(100.0)

    async def sleep(seconds: float) -> None:
        virtual.advance(seconds)

    monkeypatch.setattr(fleet, "sleep", sleep)
    return virtual


async def learned(answers: list[Any], clock: VirtualClock) -> Fleet:
    answers.append(PAIR)
    fleet = Fleet(Server.at("http://127.0.0.1:1", ""), clock)
    await fleet.learn()
    answers.clear()
    return fleet


@pytest.mark.parametrize(
    "rows, recovers",
    [
        (PAIR, True),
        (PAIR[:1], False),
        ([*PAIR, row("decode", 3)], False),
        ([row("prefill", 1), row("decode", 2, heartbeat_age_s=99.0)], False),  # nobody has missed it yet
        ([row("prefill", 1), row("decode", 9)], False),  # the one that was killed
        (None, False),
    ],
)
async def test_it_has_recovered_once_all_have_beaten_since(
    answers: list[Any], clock: VirtualClock, rows: list[Any] | None, recovers: bool
) -> None:
    whole = await learned(answers, clock)
    answers += [None, PAIR[1:], rows]
    assert await whole.recovers(9, 99.9, 5.0) is recovers
    assert clock.now() == pytest.approx(100.4) if recovers else clock.now() > 105.0


async def test_it_answers_when_its_gateway_does(answers: list[Any], clock: VirtualClock) -> None:
    whole = await learned(answers, clock)
    answers += [None, None, []]
    assert await whole.answers(5.0)
    answers[:] = [None]
    assert not await whole.answers(5.0)


@pytest.mark.parametrize(
    "fields, rests",
    [
        ({}, True),
        ({"running": 1}, False),
        ({"waiting": 1}, False),
        ({"kv_pages": {**FREE, "free": 6, "owned": 1}}, False),
        ({"kv_pages": {**FREE, "free": 6, "quarantined": 1}}, False),
        ({"kv_pages": {**FREE, "free": 6}}, False),  # a page that is lost
        ({"host_pages": {**FREE, "free": 6, "reserved": 1}}, False),
    ],
)
async def test_it_rests_when_nobody_holds_anything(
    answers: list[Any], clock: VirtualClock, fields: Mapping[str, Any], rests: bool
) -> None:
    whole = await learned(answers, clock)
    held = row("decode", 2, **fields)
    answers += [
        [PAIR[0], {**held, "heartbeat_age_s": 9.0}],
        [{**one, "heartbeat_age_s": -0.1} for one in (PAIR[0], held)],
    ]
    rows = await whole.rows_at_rest()
    assert [row["pid"] for row in rows] == ([1, 2] if rests else [])
    assert by_role(rows) == ({"prefill": 1, "decode": 1} if rests else {})
