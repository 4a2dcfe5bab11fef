"""What clients see when workers fail, and what workers see when clients leave."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.model_folder import model_facts
from protocol.fingerprint import Fingerprint
from protocol.messages_gateway import (
    ChoiceTokens,
    DeclaredLost,
    Heartbeat,
    Left,
    PeerLost,
    Refused,
    Register,
    RegisterAgain,
    Role,
    Tokens,
    Welcome,
)
from testkit.fake_worker import PATIENCE_S, STATS, Behaviour, FakeWorker
from tests.gateway.conftest import Setting, running, wait_until
from tests.gateway.folders import byte_tokenizer, write_folder

pytestmark = pytest.mark.slow


async def first_line(response: httpx.Response) -> str:
    async for line in response.aiter_lines():
        if line:
            return line
    raise AssertionError("an empty stream")


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


async def test_failure_in_mid_stream_is_an_event_and_no_done(setting: Setting) -> None:
    await setting.add_pair(Behaviour(fail_after=3, fail_code="worker_lost"))
    response = await setting.complete("x", stream=True, max_tokens=9)
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert response.status_code == 200
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    undisturbed = "".join(chr(65 + (ord("x") + 5 * place) % 26) for place in range(9))
    assert undisturbed.startswith(text)
    assert 3 <= len(chunks) <= 5, "three tokens, and those first ones of further attempts that came before the failure"
    error = last["error"]
    assert (error["type"], error["code"]) == ("service_unavailable", "worker_lost")
    whole = await setting.complete("x", max_tokens=9)
    assert whole.status_code == 503 and whole.json()["error"]["code"] == "worker_lost"


async def test_nothing_weighs_on_workers_after_a_failure(setting: Setting) -> None:
    await setting.add(Role.PREFILL)  # which never sends a first token
    await setting.add(Role.DECODE, behaviour=Behaviour(fail_after=0, fail_code="unavailable"))
    assert (await setting.complete("x")).status_code == 503
    assert setting.gateway.control.dispatch.loads == {}


async def test_a_silent_decode_worker_fails_its_requests(setting: Setting) -> None:
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


async def test_a_lost_prefill_worker_is_decodes_affair(setting: Setting) -> None:
    decode = await setting.add_pair(Behaviour(pause_s=0.05))
    waiting = asyncio.create_task(setting.complete("x", max_tokens=9))
    await decode.until(lambda: bool(decode.assigned))
    prefill = setting.workers[0]
    prefill.silent = True
    response = await waiting
    assert response.status_code == 200
    await decode.until(lambda: any(isinstance(each, PeerLost) for each in decode.received))
    lost = next(each for each in decode.received if isinstance(each, PeerLost))
    assert lost == PeerLost("prefill-0", prefill.instance)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_cancelled(setting: Setting, stream: bool) -> None:
    decode = await setting.add_pair(Behaviour(stop_after=1))
    body: dict[str, Any] = {"prompt": ["x", "y"], "max_tokens": 9, "stream": stream}
    async with httpx.AsyncClient(base_url=setting.gateway.url, timeout=PATIENCE_S) as client:
        leaving = asyncio.create_task(_post_and_read(client, body))
        await decode.until(lambda: len(decode.assigned) == 2)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    await decode.until(lambda: len(decode.cancelled) == 2)
    assert {each.request_id for each in decode.cancelled} == {each.request_id for each in decode.assigned}
    assert {each.choice for each in decode.cancelled} == {-1}
    await wait_until(lambda: len(setting.gateway.control.dispatch.requests) == 0)
    await _one_is_counted_as_cancelled(setting)


async def test_a_client_that_leaves_in_mid_request_is_no_fault(setting: Setting) -> None:
    host, port = setting.gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
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


async def _post_and_read(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with client.stream("POST", "/v1/completions", json=body) as response:
        await response.aread()


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
    for finish in ("bored", "cancelled"):
        waiting = asyncio.create_task(setting.complete("x", max_tokens=4))
        count = len(worker.assigned) + 1
        await worker.until(lambda count=count: len(worker.assigned) == count)  # type: ignore[misc]
        await worker.send(Tokens((ChoiceTokens(worker.assigned[-1].request_id, 0, 0, 0, (65,), finish),)))
        assert (await waiting).status_code == 500


async def test_malformed_and_foreign_messages_are_counted_and_dropped(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED)
    stranger = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "stranger")
    setting.workers.append(stranger)
    await stranger.send_raw(b"\xff nonsense")
    await stranger.send_raw(b"\x93")
    await worker.send(Heartbeat("someone-else", 5, STATS))
    await stranger.send(Tokens((ChoiceTokens("r", 0, 0, 0, (1,)),)))
    await wait_until(lambda: setting.gateway.control.refusals.total == 4)
    assert (await setting.complete("x")).status_code == 200


async def test_a_restarted_gateway_asks_workers_to_register(setting: Setting) -> None:
    worker = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "u")
    setting.workers.append(worker)
    await worker.send(Heartbeat("u", worker.instance, STATS))
    receiving = asyncio.create_task(worker.start())
    await receiving
    await worker.until(lambda: any(isinstance(each, RegisterAgain) for each in worker.received))
    assert any(isinstance(each, Welcome) for each in worker.received)


@pytest.mark.parametrize(
    ("fingerprint", "why"),
    [
        (Fingerprint("tale"), "model fingerprint is tale on other, story on prefill-0"),
        (Fingerprint("story", tokenizer="x"), "tokenizer.json: its digest is x on other, {} at the gateway"),
    ],
)
async def test_a_worker_with_another_model_or_tokenizer_is_refused(
    setting: Setting, fingerprint: Fingerprint, why: str
) -> None:
    await setting.add(Role.PREFILL)
    other = FakeWorker(Role.DECODE, setting.gateway.control_endpoint, "other", fingerprint=fingerprint)
    setting.workers.append(other)
    starting = asyncio.create_task(other.start())
    await other.until(lambda: bool(other.received))
    [refused] = other.received
    assert refused == Refused(why.format(setting.gateway.control.membership.tokenizer))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert isinstance(other.registration(), Register)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-05,
}


async def test_the_first_worker_with_another_model_than_the_gateways_is_refused(tmp_path: Path) -> None:
    ours, theirs = (
        write_folder(tmp_path / name, byte_tokenizer(), config=LLAMA | changes)
        for name, changes in (("ours", {}), ("theirs", {"num_hidden_layers": 5}))
    )
    async with running(ours) as setting:
        other = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "other")
        other.fingerprint = Fingerprint("story", facts=model_facts(theirs))
        setting.workers.append(other)
        starting = asyncio.create_task(other.start())
        await other.until(lambda: bool(other.received))
        assert other.received == [Refused("num_layers is 5 on other, 2 on the gateway")]
        assert (await setting.complete("x")).status_code == 503
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        same = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "same")
        same.fingerprint = Fingerprint("story", facts=model_facts(ours))
        setting.workers.append(same)
        await same.start()
        assert (await setting.complete("x")).status_code == 200


async def test_a_worker_id_stays_with_its_live_worker(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    holder = await setting.add(Role.UNIFIED, "u")
    other = FakeWorker(Role.PREFILL, setting.gateway.control_endpoint, "u")
    again = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "u")
    setting.workers += [other, again]
    starting = asyncio.create_task(other.start())
    await other.until(lambda: bool(other.received))
    assert other.received == [Refused("worker id 'u' is taken by a live unified worker (pid 4242 on localhost)")]
    starting.cancel()
    waiting = asyncio.create_task(again.start())
    await wait_until(lambda: any("kept waiting" in record.getMessage() for record in caplog.records))
    assert (await setting.complete("x")).status_code == 200 and not again.received
    holder.silent = True  # a heartbeat after its Left would be refused too
    await holder.send(Left("u", holder.instance))
    await wait_until(lambda: not setting.gateway.control.membership.members)
    await again.send(again.registration())  # as a worker does every second
    await waiting
    assert (await setting.complete("x")).status_code == 200 and len(again.assigned) == 1
    refused = [record for record in caplog.records if record.getMessage() == "worker refused"]
    assert [record.levelname for record in refused] == ["WARNING"]


async def test_stopping_ends_what_is_in_flight(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, behaviour=Behaviour(stop_after=1))
    request = setting.client.build_request("POST", "/v1/completions", json={"prompt": "x", "stream": True})
    response = await setting.client.send(request, stream=True)
    assert (await first_line(response)).startswith("data: ")
    setting.gateway.stop()
    rest = (await response.aread()).decode() if not response.is_stream_consumed else ""
    await worker.until(lambda: bool(worker.cancelled))
    assert "[DONE]" not in rest
    await response.aclose()


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
