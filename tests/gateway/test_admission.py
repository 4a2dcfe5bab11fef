import asyncio
import json
from pathlib import Path

import pytest

from gateway.admission import BODIES, Admission
from gateway.http_app import LONG_BODY_BYTES
from protocol.errors import Overloaded
from protocol.messages_gateway import Role
from runtime.settings import HttpLimits
from tests.gateway.conftest import Setting, running, wait_until
from tests.gateway.fake_worker import Behaviour


def test_choices_in_flight_and_entering_are_bounded() -> None:
    in_flight = 3
    admission = Admission(10, 100, lambda: in_flight)
    with admission.entering(4), admission.entering(2):
        admission.check()
        with pytest.raises(Overloaded, match="9 choices are in flight and this request has 2, expected at most 10"):
            admission.entering(2).__enter__()
        with admission.entering(1), pytest.raises(Overloaded):
            admission.check()
    with admission.entering(7):
        pass
    with pytest.raises(RuntimeError), admission.entering(7):
        raise RuntimeError
    in_flight = 0
    with admission.entering(10):
        pass


def test_bytes_being_read_are_bounded() -> None:
    admission = Admission(10, 100, lambda: 0)
    with admission.reading() as read, admission.reading() as other:
        read(100 * BODIES - 1)
        other(1)
        with pytest.raises(Overloaded, match="1600 bytes"):
            other(1)
    with admission.reading() as read:
        read(100 * BODIES)


async def test_too_many_get_429_and_those_before_them_are_unharmed(folder: Path) -> None:
    async with running(folder, limits=HttpLimits(max_choices_in_flight=4)) as setting:
        worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(pause_s=0.05))
        held = [asyncio.create_task(setting.complete("x", max_tokens=20, n=2)) for _ in range(2)]
        await worker.until(lambda: len(worker.assigned) == 2)
        for fields in (
            {},
            {"n": 2},
            {"prompt": ["a", "b"]},
            {"stream": True},
            {"prompt": 5},
        ):  # the last is not even looked at
            response = await setting.complete(**{"prompt": "x", **fields})
            error = response.json()["error"]
            assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
            assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
            assert "4 choices are in flight" in error["message"]
        assert not any(each.done() for each in held) and len(worker.assigned) == 2
        assert [(await each).json()["usage"]["completion_tokens"] for each in held] == [40, 40]
        assert (await setting.complete("x", max_tokens=1, n=4)).status_code == 200
        refused = await setting.complete("x", n=5)
        assert refused.status_code == 400 and "at most 4 in all" in refused.json()["error"]["message"]
        assert 'baton_requests_total{model_name="story",outcome="overloaded"} 5.0' in await setting.metrics()


async def test_there_is_room_again_when_clients_leave(folder: Path) -> None:
    async with running(folder, limits=HttpLimits(max_choices_in_flight=1)) as setting:
        worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(stop_after=1))
        held = asyncio.create_task(setting.complete("x", max_tokens=20))
        await worker.until(lambda: len(worker.assigned) == 1)
        assert (await setting.complete("x")).status_code == 429
        held.cancel()
        await wait_until(lambda: len(setting.gateway.control.requests) == 0)
        worker.behaviour = Behaviour()
        assert (await setting.complete("x")).status_code == 200


async def test_choices_are_prompts_times_n(folder: Path) -> None:
    async with running(folder, limits=HttpLimits(max_choices_in_flight=8)) as setting:
        worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(stop_after=1))
        held = asyncio.create_task(setting.complete("x", max_tokens=20, n=3))
        await worker.until(lambda: len(worker.assigned) == 1)
        refused = await setting.complete(["a", "b", "c"], n=2)
        assert refused.status_code == 429
        assert "3 choices are in flight and this request has 6" in refused.json()["error"]["message"]
        held.cancel()
        await wait_until(lambda: len(setting.gateway.control.requests) == 0)


async def test_refused_and_failed_requests_leave_room(setting: Setting) -> None:
    """Neither count for ever."""
    await setting.add(Role.UNIFIED)
    for body in ({"prompt": "x", "max_tokens": 5000}, {"prompt": [999]}, {"prompt": "x", "model": "other"}):
        for _ in range(3):
            assert (await setting.client.post("/v1/completions", json=body)).status_code in (400, 404)
    with setting.gateway.service.admission.entering(HttpLimits().max_choices_in_flight):
        pass
    assert (await setting.complete("x")).status_code == 200


async def test_bodies_that_wait_for_their_turn_count(folder: Path) -> None:
    """Reading them is quick, parsing is not: they must not pile up between the two."""
    limits = HttpLimits(max_body_bytes=LONG_BODY_BYTES + 1000)
    async with running(folder, limits=limits) as setting:
        await setting.add(Role.UNIFIED)
        content = json.dumps({"prompt": "x", "max_tokens": 1, "user": "y" * LONG_BODY_BYTES})
        service = setting.gateway.service
        await service.one_long_body.acquire()
        waiting = [asyncio.create_task(setting.client.post("/v1/completions", content=content)) for _ in range(BODIES)]
        held = service.admission
        await wait_until(lambda: held.num_bytes == BODIES * len(content))
        refused = await setting.client.post("/v1/completions", content=content)
        assert refused.status_code == 429 and "bytes are being read" in refused.json()["error"]["message"]
        assert (await setting.complete("short", max_tokens=1)).status_code == 200
        service.one_long_body.release()
        assert [(await each).status_code for each in waiting] == [200] * BODIES
        assert held.num_bytes == 0
