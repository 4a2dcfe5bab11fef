"""POST /flush_cache: answered when every worker has said that it has forgotten what it had cached."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest

from gateway import control
from protocol.messages_gateway import CacheFlushed, FlushCache, Leaving, Role
from tests.doubles.fake_worker import FakeWorker
from tests.gateway.conftest import Setting, wait_until


def flushes_of(worker: FakeWorker) -> list[int]:
    return [message.number for message in worker.received if isinstance(message, FlushCache)]


async def told(worker: FakeWorker, known: int) -> None:
    """Waits until it has been told of more than `known` flushes."""
    await worker.until(lambda: len(flushes_of(worker)) > known)


async def asked(setting: Setting, workers: Sequence[FakeWorker], path: str) -> asyncio.Task[httpx.Response]:
    """The call, once every worker has been told."""
    before = [len(flushes_of(worker)) for worker in workers]
    asking = asyncio.create_task(setting.client.post(path))
    for worker, known in zip(workers, before, strict=True):
        await told(worker, known)
    return asking


async def answer(worker: FakeWorker) -> None:
    await worker.send(CacheFlushed(flushes_of(worker)[-1]))


@pytest.fixture
async def workers(setting: Setting) -> list[FakeWorker]:
    """A pair and a unified worker, which answer no flush by themselves."""
    decode = await setting.add_pair()
    for worker in (found := [setting.workers[0], decode, await setting.add(Role.UNIFIED)]):
        worker.flushes = False
    return found


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
async def test_it_is_answered_when_the_last_worker_has_flushed(
    setting: Setting, workers: list[FakeWorker], path: str
) -> None:
    waiting = setting.gateway.control._flushes._waiting
    for _ in range(2):
        asking = await asked(setting, workers, path)
        *others, last = workers
        for worker in others:
            await answer(worker)
        await wait_until(lambda: [len(left) for left, _ in waiting.values()] == [1])
        assert not asking.done()
        await answer(last)
        response = await asking
        assert response.status_code == 200 and response.json() == {"status": "ok"}
        assert waiting == {}


async def test_a_worker_that_leaves_is_not_waited_for(setting: Setting, workers: list[FakeWorker]) -> None:
    asking = await asked(setting, workers, "/flush_cache")
    *others, last = workers
    for worker in others:
        await answer(worker)
    await last.send(Leaving(last.worker_id, last.instance))
    assert (await asking).status_code == 200


async def test_without_workers_it_is_answered_at_once(setting: Setting) -> None:
    assert (await setting.client.post("/flush_cache")).json() == {"status": "ok"}


async def test_a_worker_that_does_not_answer_is_named(
    setting: Setting, workers: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "FLUSH_S", 0.0)
    response = await setting.client.post("/flush_cache")
    error = response.json()["error"]
    assert response.status_code == 503 and error["type"] == "service_unavailable"
    names = ", ".join(sorted(worker.worker_id for worker in workers))
    assert error["message"] == f"{names} did not answer in 0 s, and may still reuse what it has cached"
    assert setting.gateway.control._flushes._waiting == {}
    for worker in workers:  # an answer that comes too late
        await told(worker, 0)
        await answer(worker)
    monkeypatch.undo()
    for worker in workers:
        worker.flushes = True
    assert (await setting.client.post("/flush_cache")).status_code == 200
    assert (await setting.complete("x", max_tokens=2)).status_code == 200
