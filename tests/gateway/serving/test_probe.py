"""A probe over HTTP: workers generate a token for it, or for others meanwhile."""

import asyncio
from pathlib import Path

import pytest

from gateway.serving import probe
from protocol.errors import QueueFull
from protocol.messages_gateway import Role
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, running, wait_until


async def test_a_probe_generates_a_token(setting: Setting) -> None:
    await setting.add_pair()
    response = await setting.client.get("/health_generate")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    decode = setting.workers[1]
    assert [(each.prompt_ids, each.sampling.max_tokens) for each in decode.assigned] == [((0,), 1)]


async def test_a_probe_is_not_counted(setting: Setting) -> None:
    await setting.add_pair()
    names = ("baton_requests", "baton_prompt_tokens", "baton_generation_tokens", "baton_time_to_first_token")
    before = [line for line in await setting.metrics() if line.startswith(names)]
    await setting.client.get("/health_generate")
    assert before and [line for line in await setting.metrics() if line.startswith(names)] == before


async def test_tokens_of_others_answer_a_probe_that_waits(folder: Path) -> None:
    """Its own prompt waits behind them."""
    async with running(folder) as setting:
        worker = await setting.add_pair(Behaviour(script=lambda assign, _: () if assign.prompt_ids == (0,) else [65]))
        asking = asyncio.create_task(setting.client.get("/health_generate"))
        await worker.until(lambda: len(worker.assigned) == 1)
        await setting.complete([7], max_tokens=1)
        assert (await asking).json() == {"status": "ok"}
        await wait_until(lambda: len(worker.cancelled) == 1)


async def test_a_probe_that_gets_nothing_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.05)
    async with running(folder) as setting:
        await setting.add_pair(Behaviour(stop_after=0, first_token_late=True, script=lambda *_: ()))
        response = await setting.client.get("/health_generate")
        assert response.status_code == 503 and "no token within 0.05 s" in response.json()["error"]["message"]


async def test_a_probe_for_which_workers_have_no_room_succeeds(folder: Path) -> None:
    async with running(folder) as setting:
        await setting.add(Role.UNIFIED, behaviour=Behaviour(fail_after=0, fail_code=QueueFull.code))
        response = await setting.client.get("/health_generate")
        assert (response.status_code, response.json()["status"]) == (200, "busy")
