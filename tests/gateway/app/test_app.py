import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.messages_gateway import Role
from runtime.settings import HttpLimits
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, events, running


def expected_text(prompt_ids: list[int], num_tokens: int, choice: int = 0) -> str:
    start = sum(prompt_ids) + 7 * choice
    return "".join(chr(65 + (start + 5 * place) % 26) for place in range(num_tokens))


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(twice=True),
        Behaviour(reverse=True),
        Behaviour(first_token_late=True),
        Behaviour(burst=3),
        Behaviour(burst=3, twice=True, reverse=True),
    ],
    ids=["twice", "reverse", "first-late", "burst", "all"],
)
async def test_each_token_once_and_in_order(setting: Setting, behaviour: Behaviour) -> None:
    await setting.add_pair(behaviour)
    fields: dict[str, Any] = {"max_tokens": 12, "n": 3, "return_token_ids": True}
    expected = [expected_text(prompt, 12, choice) for prompt in ([9], [4, 4]) for choice in range(3)]
    streamed = await setting.complete([[9], [4, 4]], stream=True, **fields)
    assert texts_of_stream(streamed.text) == expected
    whole = await setting.complete([[9], [4, 4]], **fields)
    assert [each["text"] for each in whole.json()["choices"]] == expected


def texts_of_stream(content: str) -> list[str]:
    lines = [line for line in content.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    texts: dict[int, str] = {}
    for line in lines[:-1]:
        chunk = json.loads(line.removeprefix("data: "))
        [choice] = chunk["choices"]
        assert len(choice["text"]) == len(choice["token_ids"]) > 0
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return [texts[index] for index in sorted(texts)]


async def test_stop_string_cuts_the_text_and_cancels(setting: Setting) -> None:
    behaviour = Behaviour(lambda assign, choice: list(b"one two three four"), pause_s=0.002)
    decode = await setting.add_pair(behaviour)
    response = await setting.complete("x", max_tokens=18, stop=["four", " thr"], return_token_ids=True)
    [choice] = response.json()["choices"]
    assert choice["text"] == "one two" and choice["finish_reason"] == "stop"
    assert choice["token_ids"] == list(b"one two thr")
    assert response.json()["usage"]["completion_tokens"] == 11
    await decode.until(lambda: bool(decode.cancelled))
    assert (decode.cancelled[0].request_id, decode.cancelled[0].choice) == (decode.assigned[0].request_id, -1)


async def test_stop_string_of_one_choice_leaves_the_others(setting: Setting) -> None:
    texts = (b"abSTOPcdef", b"ghijklmnop")
    decode = await setting.add_pair(Behaviour(lambda assign, choice: list(texts[choice]), pause_s=0.002))
    response = await setting.complete("x", max_tokens=10, stop="STOP", n=2)
    found = [(each["text"], each["finish_reason"]) for each in response.json()["choices"]]
    assert found == [("ab", "stop"), ("ghijklmnop", "length")]
    await decode.until(lambda: [message.choice for message in decode.cancelled] == [0])


async def test_what_the_worker_is_told(setting: Setting) -> None:
    decode = await setting.add_pair()
    await setting.complete(
        "Hi", max_tokens=3, n=2, seed=5, temperature=0, top_k=4, stop_token_ids=[7, 7], ignore_eos=True, min_tokens=1
    )
    [assign] = decode.assigned
    assert assign.prompt_ids == (72, 105) and assign.num_choices == 2 and assign.attempt == 0
    assert assign.prefill is not None and assign.prefill.peer == "tcp://127.0.0.1:1"
    sampling = assign.sampling
    assert (sampling.max_tokens, sampling.seed, sampling.temperature, sampling.top_k) == (3, 5, 0.0, 4)
    assert sampling.stop_token_ids == (7,) and sampling.ignore_eos and sampling.min_tokens == 1


@pytest.mark.parametrize("include_usage", [False, True])
async def test_timeline(setting: Setting, include_usage: bool) -> None:
    await setting.add_pair(Behaviour(pause_s=0.02))  # prefill's message is there before decode's last
    fields: dict[str, Any] = {"max_tokens": 3, "timeline": True}
    whole = (await setting.complete("x", **fields)).json()["timeline"]
    options = {"stream": True, "stream_options": {"include_usage": include_usage}}
    chunks = events((await setting.complete("x", **fields, **options)).text)[:-1]
    assert [chunk for chunk in chunks if "timeline" in chunk] == chunks[-1:]
    for timeline in (whole, chunks[-1]["timeline"]):
        by_name = {each["name"]: each for each in timeline}
        assert {"received", "tokenised", "assigned", "first token", "first token out", "decode done", "done"} <= set(
            by_name
        )
        assert by_name["received"] == {"name": "received", "at_ms": 0.0, "worker": "gateway"}
        assert by_name["decode done"]["worker"].startswith("decode")
        assert [each["at_ms"] for each in timeline] == sorted(each["at_ms"] for each in timeline)


async def test_a_header_asks_for_the_timeline_unless_the_body_speaks(setting: Setting) -> None:
    await setting.add_pair()

    async def ask(header: str, **fields: Any) -> httpx.Response:
        body = {"prompt": "x", "max_tokens": 2, **fields}
        return await setting.client.post("/v1/completions", json=body, headers={"x-baton-timeline": header})

    assert {"received", "done"} <= {each["name"] for each in (await ask("true")).json()["timeline"]}
    assert "timeline" in (await ask("true", stream=True)).text
    assert "timeline" not in (await ask("false")).json()
    assert "timeline" not in (await ask("true", timeline=False)).json()
    refused = await ask("yes")
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["message"] == "x-baton-timeline: got 'yes', expected true or false"
    assert error["param"] == "x-baton-timeline"


async def test_without_workers(setting: Setting) -> None:
    for response in (await setting.complete("x"), await setting.client.get("/health")):
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("service_unavailable", "unavailable")
        assert error["message"].partition(", so ")[0] == "no worker is ready yet"
    await setting.add(Role.PREFILL)
    for response in (await setting.complete("x"), await setting.client.get("/health")):
        assert response.status_code == 503
        assert response.json()["error"]["message"].partition(", so ")[0] == "no decode worker is ready yet"
    await setting.add(Role.DECODE)
    assert (await setting.client.get("/health")).status_code == 200
    assert (await setting.client.head("/health")).status_code == 200


async def test_request_id_is_echoed_or_made(setting: Setting) -> None:
    assert (await setting.client.get("/", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    for unreasonable in ("a b", "x" * 200):
        made = (await setting.client.get("/", headers={"x-request-id": unreasonable})).headers["x-request-id"]
        assert made.startswith("req-")
    assert (await setting.complete("x")).headers["x-request-id"].startswith("req-")


async def test_workers(setting: Setting) -> None:
    decode = await setting.add_pair()
    rows = (await setting.client.get("/workers")).json()
    assert [row["role"] for row in rows] == ["decode", "prefill"]
    row = rows[0]
    assert (row["id"], row["pid"], row["state"], row["running"], row["waiting"]) == ("decode-1", 4242, "ready", 1, 0)
    assert row["instance"] == str(decode.instance) and 0 <= row["heartbeat_age_s"] < 60
    expected = {"total": 256, "free": 250, "cached": 0, "owned": 6, "reserved": 0, "quarantined": 0}
    assert row["kv_pages"] == expected


async def test_a_body_that_is_too_long(folder: Path) -> None:
    async with running(folder, limits=HttpLimits(max_body_bytes=100)) as setting:
        response = await setting.complete("x" * 200)
        assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
        assert 'baton_requests_total{model_name="story",outcome="cancelled"} 0.0' in await setting.metrics()

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(4):
                yield b"x" * 50

        mine = {"x-request-id": "mine"}
        response = await setting.client.post("/v1/completions", content=chunks(), headers=mine)
        assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
        assert response.headers["x-request-id"] == "mine"
        lines = await setting.metrics()
        assert 'baton_requests_total{model_name="story",outcome="cancelled"} 1.0' in lines
        counted = [line for line in lines if line.startswith("baton_http_responses_total{") and 'status="4' in line]
        assert [line for line in counted if not line.endswith(" 0.0")] == [
            'baton_http_responses_total{model_name="story",status="413"} 2.0'
        ]


async def test_a_body_that_is_announced_too_long_is_refused_before_its_key_is_looked_at(folder: Path) -> None:
    keys = folder.parent / "keys"
    keys.write_text("a-key-of-some-length\n")
    keys.chmod(0o600)
    async with running(folder, limits=HttpLimits(max_body_bytes=100), api_key_file=str(keys)) as setting:
        assert (await setting.complete("x" * 200)).status_code == 413
        assert (await setting.complete("x")).status_code == 401


async def test_settings_and_workers_bound_the_context(folder: Path) -> None:
    async with running(folder, context_length=40) as setting:
        await setting.add_pair()
        assert (await setting.client.get("/v1/models")).json()["data"][0]["max_model_len"] == 40
        await setting.add(Role.UNIFIED, context_length=30)
        error = (await setting.complete([1] * 20, max_tokens=11)).json()["error"]
        assert "20" in error["message"] and "11" in error["message"] and "30" in error["message"]
        response = await setting.client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": ""}]}
        )
        assert response.json()["usage"]["total_tokens"] == 30
