"""POST /flush_cache: answered when every worker has said that it has forgotten what it had cached."""

import asyncio

import pytest

from gateway.routing import control
from protocol.messages_gateway import CacheFlushed, FlushCache, Left, Role
from testkit.fake_worker import FakeWorker
from tests.gateway.conftest import Setting, wait_until


def flushes_of(worker: FakeWorker) -> list[int]:
    return [message.number for message in worker.received if isinstance(message, FlushCache)]


async def told(worker: FakeWorker, known: int) -> None:
    """Waits until it has been told of more than `known` flushes."""
    await worker.until(lambda: len(flushes_of(worker)) > known)


async def answer(worker: FakeWorker, known: int = 0) -> None:
    """Answers when it has been told of more than `known` flushes."""
    await told(worker, known)
    await worker.send(CacheFlushed(flushes_of(worker)[-1]))


@pytest.fixture
async def workers(setting: Setting) -> list[FakeWorker]:
    """A pair, prefill first, and a unified worker. They answer no flush by themselves."""
    decode = await setting.add_pair()
    for worker in (found := [setting.workers[0], decode, await setting.add(Role.UNIFIED)]):
        worker.flushes = False
    return found


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
async def test_it_is_answered_when_the_last_worker_has_flushed(
    setting: Setting, workers: list[FakeWorker], path: str
) -> None:
    prefill, decode, unified = workers
    under_way = setting.gateway.control._flushes._flushes
    for known in range(2):
        asking = asyncio.create_task(setting.client.post(path))
        await told(prefill, known)
        assert len(flushes_of(decode)) == len(flushes_of(unified)) == known, "prefill workers flush first"
        await answer(prefill, known)
        await answer(decode, known)
        await wait_until(lambda: [len(each.waiting) for each in under_way.values() if not each.stages] == [1])
        assert not asking.done()

        await answer(unified, known)
        response = await asking
        assert response.status_code == 200 and response.json() == {"status": "ok"}
        assert under_way == {}


async def test_a_worker_that_leaves_is_not_waited_for(setting: Setting, workers: list[FakeWorker]) -> None:
    asking = asyncio.create_task(setting.client.post("/flush_cache"))
    prefill, decode, unified = workers
    await answer(prefill)
    await answer(decode)
    await told(unified, 0)
    await unified.send(Left(unified.worker_id, unified.instance))
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
    silent = workers[0].worker_id  # the others were not asked
    assert error["message"] == f"{silent} did not answer in 0 s, and may still reuse what it has cached"
    assert setting.gateway.control._flushes._flushes == {}
    await answer(workers[0])  # too late
    monkeypatch.undo()
    for worker in workers:
        worker.flushes = True
    assert (await setting.client.post("/flush_cache")).status_code == 200
    assert (await setting.complete("x", max_tokens=2)).status_code == 200
