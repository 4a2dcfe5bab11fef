"""What clients see when workers fail, and what workers see when clients leave."""

import asyncio
from pathlib import Path

import pytest

from gateway.text.model_folder import model_facts
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import (
    ChoiceTokens,
    DeclaredLost,
    Left,
    PeerLost,
    Refused,
    Role,
    Tokens,
)
from runtime.settings import GatewaySettings
from testkit.fake_worker import PATIENCE_S, Behaviour, FakeWorker
from tests.gateway.conftest import Setting, connect, running, wait_until
from tests.gateway.folders import byte_tokenizer, write_folder

pytestmark = pytest.mark.slow


async def test_failure_before_the_first_token_is_a_status(setting: Setting) -> None:
    for code, status in (("unavailable", 503), ("overloaded", 429), ("bad_request", 400), ("internal_error", 500)):
        worker = await setting.add(Role.UNIFIED, "u", behaviour=Behaviour(fail_after=0, fail_code=code))
        for stream in (False, True):
            response = await setting.complete("x", stream=stream)
            assert response.status_code == status
            assert response.json()["error"]["code"] == code
            assert ("retry-after" in response.headers) == (status in (429, 503))
        await worker.send(Left("u", worker.instance))
        await wait_until(lambda: not setting.gateway.control.membership.members)
        await worker.stop()


async def test_a_silent_decode_worker_fails_its_requests(folder: Path) -> None:
    async with running(folder, silence_limit_s=GatewaySettings.silence_limit_s) as setting:
        decode = await setting.add_pair(Behaviour(stop_after=2))
        prefill = setting.workers[0]
        waiting = asyncio.create_task(setting.complete("x", max_tokens=9))
        await decode.until(lambda: bool(decode.assigned))
        decode.silent = True
        response = await waiting
        assert response.status_code == 503 and response.json()["error"]["code"] == "worker_lost"
        assert "'decode-1'" in response.json()["error"]["message"]
        await prefill.until(lambda: any(isinstance(each, PeerLost) for each in prefill.received))
        assert (await setting.client.get("/health")).status_code == 503
        decode.silent = False
        await decode.until(lambda: any(isinstance(each, DeclaredLost) for each in decode.received))
        assert [row["id"] for row in (await setting.client.get("/workers")).json()] == ["prefill-0"]


async def test_a_client_that_leaves_in_mid_request_is_no_fault(setting: Setting) -> None:
    _, writer = await connect(setting)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    await _one_is_counted_as_cancelled(setting)
    assert (await setting.client.get("/")).status_code == 200


async def _one_is_counted_as_cancelled(setting: Setting) -> None:
    line = 'baton_requests_total{model_name="story",outcome="cancelled"} 1.0'
    async with asyncio.timeout(PATIENCE_S):
        while line not in await setting.metrics():  # noqa: ASYNC110  # a metric has no event
            await asyncio.sleep(0)


async def test_a_failed_prompt_cancels_the_others(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(fail_after=1))
    response = await setting.complete(["x", "y", "z"], max_tokens=4)
    assert response.status_code == 500
    await worker.until(lambda: len(worker.cancelled) >= 2)
    assert len(setting.gateway.control.dispatch.requests) == 0


async def test_tokens_that_make_no_sense_fail_only_their_request(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(stop_after=0))
    first = asyncio.create_task(setting.complete("x", max_tokens=4))
    await worker.until(lambda: len(worker.assigned) == 1)
    bad = ChoiceTokens(worker.assigned[0].request_id, 0, 5, 0, (1,))
    await worker.send(Tokens((bad,)))
    assert (await first).status_code == 500
    second = asyncio.create_task(setting.complete("x", max_tokens=1))
    await worker.until(lambda: len(worker.assigned) == 2)
    good = ChoiceTokens(worker.assigned[1].request_id, 0, 0, 0, (65,), "length")
    await worker.send(Tokens((bad, good)))
    assert (await second).json()["choices"][0]["text"] == "A"


async def test_an_unknown_finish_fails_the_request(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(stop_after=0))
    for finish in ("bored", "cancelled", "preempted"):
        waiting = asyncio.create_task(setting.complete("x", max_tokens=4))
        count = len(worker.assigned) + 1
        await worker.until(lambda count=count: len(worker.assigned) == count)  # type: ignore[misc]
        await worker.send(Tokens((ChoiceTokens(worker.assigned[-1].request_id, 0, 0, 0, (65,), finish),)))
        assert (await waiting).status_code == 500


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-05,
}


async def test_the_first_worker_with_another_model_or_tokenizer_than_the_gateways_is_refused(tmp_path: Path) -> None:
    ours, theirs = (
        write_folder(tmp_path / name, byte_tokenizer(), config=LLAMA | changes)
        for name, changes in (("ours", {}), ("theirs", {"num_hidden_layers": 5}))
    )
    async with running(ours) as setting:
        digest = setting.gateway.control.membership.tokenizer
        for fingerprint, why in (
            (Fingerprint("story", facts=model_facts(theirs)), "num_layers is 5 on other, 2 on the gateway"),
            (Fingerprint("story", tokenizer="x"), f"tokenizer.json: its digest is x on other, {digest} at the gateway"),
        ):
            other = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "other", fingerprint=fingerprint)
            setting.workers.append(other)
            starting = asyncio.create_task(other.start())
            await other.until(lambda other=other: bool(other.received))  # type: ignore[misc]
            assert other.received == [Refused(why)]
            assert (await setting.complete("x")).status_code == 503
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        same = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "same")
        same.fingerprint = Fingerprint("story", facts=model_facts(ours))
        setting.workers.append(same)
        await same.start()
        assert (await setting.complete("x")).status_code == 200


async def test_a_fault_in_one_look_at_the_workers_is_not_the_last_look(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway goes on looking after a fault, so it still finds a lost worker. It logs a fault that lasts once, and
    not four times a second."""
    worker = await setting.add(Role.UNIFIED)
    control = setting.gateway.control
    num_looks = 0
    look = control.look

    def faulty(is_punctual: bool = True) -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks in (1, 2, 4):
            raise ZeroDivisionError
        look(is_punctual)

    monkeypatch.setattr(control, "look", faulty)
    await wait_until(lambda: num_looks >= 5)
    await worker.stop()
    await wait_until(lambda: control.membership.missing is not None)
    assert caplog.messages.count("look failed") == 2
