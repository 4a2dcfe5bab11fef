"""SGLang's native routes over HTTP: names, shapes, probes and aborts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.messages_gateway import Role
from tests.doubles.fake_worker import Behaviour
from tests.gateway.conftest import Setting, events, running, wait_until
from tests.gateway.folders import EOS, byte_tokenizer, write_folder

TEXT = "one two three four"
IDS = list(TEXT.encode())


def spelling(text: str, *, ends: bool = True) -> Behaviour:
    """A worker that answers every choice with this text."""
    return Behaviour(script=lambda assign, choice: [*text.encode(), *([EOS] if ends else [])], burst=3)


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    folder = write_folder(tmp_path / "story", byte_tokenizer())
    async with running(folder) as found:
        await found.add_pair(spelling(TEXT))
        yield found


async def generate(setting: Setting, **body: Any) -> httpx.Response:
    return await setting.client.post("/generate", json=body)


async def test_one_prompt_gets_an_object(setting: Setting) -> None:
    response = await generate(setting, input_ids=[1, 2, 3, 4, 5], sampling_params={"max_new_tokens": 30}, rid="mine")
    assert response.status_code == 200, response.text
    body = response.json()
    meta = body.pop("meta_info")
    assert body == {"text": TEXT, "output_ids": [*IDS, EOS]}
    assert meta.pop("e2e_latency") > 0
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "stop", "matched": EOS},
        "prompt_tokens": 5,
        "completion_tokens": len(IDS) + 1,
        "cached_tokens": 0,
        "weight_version": "default",
    }


async def test_a_list_of_prompts_gets_a_list_and_each_its_own_parameters(setting: Setting) -> None:
    params = [{"max_new_tokens": 4}, {"max_new_tokens": 30, "stop": "three"}]
    response = await generate(setting, input_ids=[[1, 2], [3]], sampling_params=params, rid="r")
    first, second = response.json()
    assert (first["text"], first["meta_info"]["id"]) == ("one ", "r_0")
    assert first["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert (second["text"], second["meta_info"]["id"]) == ("one two ", "r_1")
    assert second["meta_info"]["finish_reason"] == {"type": "stop", "matched": "three"}
    assert [each["meta_info"]["prompt_tokens"] for each in (first, second)] == [2, 1]


async def test_several_choices_get_a_list(setting: Setting) -> None:
    response = await generate(setting, input_ids=[1], sampling_params={"n": 3, "max_new_tokens": 4}, rid="r")
    assert [each["meta_info"]["id"] for each in response.json()] == ["r_0", "r_1", "r_2"]


@pytest.mark.parametrize("is_list", [False, True])
async def test_each_event_has_all_so_far(setting: Setting, is_list: bool) -> None:
    ids: Any = [[7]] if is_list else [7]
    response = await generate(setting, input_ids=ids, stream=True, sampling_params={"max_new_tokens": 30})
    found = events(response.text)
    assert found.pop() is None, "[DONE] comes last"
    assert len(found) > 2
    for event in found:
        num = event["meta_info"]["completion_tokens"]
        assert event["output_ids"] == [*IDS, EOS][:num]
        assert event["text"] == TEXT[: len(event["text"])]
        assert event.get("index") == (0 if is_list else None)
    assert [event["meta_info"]["finish_reason"] for event in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["text"] == TEXT and "e2e_latency" in found[-1]["meta_info"]


@pytest.mark.parametrize("stop", [None, "thr", "Ω"])
@pytest.mark.parametrize("text", [TEXT, "Grüße, 日本 and Ω 🙂 three"])
async def test_text_and_tokens_are_those_of_completions(tmp_path: Path, text: str, stop: str | None) -> None:
    folder = write_folder(tmp_path / "story", byte_tokenizer())
    async with running(folder) as setting:
        await setting.add_pair(spelling(text))
        body: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 60, "stop": stop, "return_token_ids": True}
        [choice] = (await setting.client.post("/v1/completions", json=body)).json()["choices"]
        for stream in (False, True):
            params = {"max_new_tokens": 60, "stop": stop}
            response = await generate(setting, input_ids=[1, 2], sampling_params=params, stream=stream)
            told = events(response.text)[-2] if stream else response.json()
            assert (told["text"], told["output_ids"]) == (choice["text"], choice["token_ids"])
            assert told["meta_info"]["finish_reason"]["type"] == choice["finish_reason"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "text", "text, input_ids: neither is there, expected one of them"),
        ({"text": "a", "input_ids": [1]}, "input_ids", "text, input_ids: both are there, expected one of them"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature", "expected at least 0"),
        ({"text": "a", "sampling_params": {"max_new_tokens": "4"}}, "sampling_params.max_new_tokens", "an integer"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 9000}}, "max_new_tokens", "and max_new_tokens is 9000"),
        (
            {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 4}},
            "min_new_tokens",
            "at most max_new",
        ),
        ({"text": "a", "sampling_params": {"max_new_token": 9}}, "max_new_token", "expected max_new_tokens"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params", "has 2 items, expected 1, one for each prompt"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]}, "sampling_params", "expected the same for all"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid", "got an id twice"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid", "has 1 items, expected 2"),
        ({"text": "a", "sampling_params": {"no_stop_trim": True}}, "sampling_params.no_stop_trim", "not supported"),
        ({"text": "a", "image_data": "x.png"}, "image_data", "got 'x.png', which is not supported"),
        ({"text": "a", "bootstrap_room": 7}, "bootstrap_room", "got 7, which is not supported"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len", "expected -1"),
        ({"input_ids": [5000]}, "input_ids", "token id 5000"),
        ({"txt": "a"}, "text", "neither is there"),
        ([1], None, "the body is an array, expected a JSON object"),
    ],
)
async def test_bad_bodies_are_refused_by_sglang_s_names(
    setting: Setting, body: Any, param: str | None, words: str
) -> None:
    response = await setting.client.post("/generate", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"] and error["param"] == param, error


@pytest.mark.parametrize(
    "neutral",
    [
        {"lora_path": None, "return_routed_experts": False, "logprob_start_len": -1, "return_logprob": False},
        {"sampling_params": {"json_schema": None, "stream_interval": 5, "spaces_between_special_tokens": True}},
        {"sampling_params": None, "parallel_batch": True},
    ],
)
async def test_fields_that_change_nothing_pass(setting: Setting, neutral: dict[str, Any]) -> None:
    assert (await generate(setting, text="hello", **neutral)).status_code == 200


async def test_without_a_limit_128_tokens_are_asked_for(tmp_path: Path) -> None:
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        worker = await setting.add(Role.UNIFIED)
        await generate(setting, input_ids=[1, 2, 3])
        assert worker.assigned[0].sampling.max_tokens == 128


# ---- probes ----


async def test_a_probe_generates_a_token(setting: Setting) -> None:
    response = await setting.client.get("/health_generate")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    decode = setting.workers[1]
    assert [(each.prompt_ids, each.sampling.max_tokens) for each in decode.assigned] == [((0,), 1)]


async def test_a_probe_without_workers_fails(tmp_path: Path) -> None:
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        response = await setting.client.get("/health_generate")
        assert response.status_code == 503 and "retry-after" in response.headers


# ---- aborts ----


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Setting]:
    """Its workers fall silent about each request after two tokens."""
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as found:
        await found.add_pair(Behaviour(stop_after=2))
        yield found


async def begun(setting: Setting, number: int) -> None:
    """Waits until so many requests are in flight, with tokens."""
    in_flight = setting.gateway.service.in_flight
    await wait_until(lambda: len({id(g) for g, _ in in_flight._by_id.values() if g.num_tokens >= 2}) >= number)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_ends_its_request_only(slow: Setting, stream: bool) -> None:
    calls = [asyncio.create_task(generate(slow, input_ids=[7], rid=f"r{i}", stream=stream)) for i in range(2)]
    await begun(slow, 2)
    assert (await slow.client.post("/abort_request", json={"rid": "r0"})).status_code == 200

    response = await calls[0]
    told = events(response.text)[-2] if stream else response.json()
    assert told["meta_info"]["finish_reason"] == {"type": "abort", "message": "Aborted"}
    assert len(told["output_ids"]) == 2, "it keeps what it has"
    decode = slow.workers[1]
    await wait_until(lambda: len(decode.cancelled) == 1)
    assert not calls[1].done()

    await slow.client.post("/abort_request", json={"abort_all": True})
    assert (await calls[1]).status_code == 200
    assert not slow.gateway.service.in_flight._by_id


async def test_one_prompt_of_several_is_aborted_by_its_own_id(slow: Setting) -> None:
    call = asyncio.create_task(generate(slow, input_ids=[[1], [2]], rid=["a", "b"], stream=True))
    await begun(slow, 1)
    await slow.client.post("/abort_request", json={"rid": "b"})
    decode = slow.workers[1]
    await wait_until(lambda: len(decode.cancelled) == 1)
    assert not call.done()
    await slow.client.post("/abort_request", json={"rid": "a"})
    last = {
        event["index"]: event["meta_info"]["finish_reason"]["type"]
        for event in events((await call).text)[:-1]
        if event["meta_info"]["finish_reason"]
    }
    assert last == {0: "abort", 1: "abort"}


async def test_completions_are_aborted_by_the_id_of_their_answer(slow: Setting) -> None:
    body = {"prompt": [7], "stream": True, "max_tokens": 50}
    async with slow.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        await slow.client.post("/abort_request", json={"rid": first["id"]})
        rest = [json.loads(line.removeprefix("data: ")) async for line in lines if line not in ("", "data: [DONE]")]
    assert rest[-1]["choices"][0]["finish_reason"] == "abort"


async def test_an_id_is_in_flight_once(slow: Setting) -> None:
    call = asyncio.create_task(generate(slow, input_ids=[7], rid="r"))
    await begun(slow, 1)
    twice = await generate(slow, input_ids=[7], rid="r")
    assert twice.status_code == 400 and "'r', which is in flight" in twice.json()["error"]["message"]
    await slow.client.post("/abort_request", json={"rid": "r"})
    await call
    assert (await slow.client.post("/abort_request", json={"rid": "r"})).status_code == 200, "it has ended already"


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": 7}, {"abort_all": "yes"}])
async def test_an_abort_names_something(setting: Setting, body: Any) -> None:
    response = await setting.client.post("/abort_request", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] in ("rid", "abort_all")


async def test_a_client_that_leaves_is_forgotten(slow: Setting) -> None:
    async with slow.client.stream("POST", "/generate", json={"input_ids": [7], "rid": "r", "stream": True}) as response:
        await anext(response.aiter_lines())
    await wait_until(lambda: not slow.gateway.service.in_flight._by_id)
    decode = slow.workers[1]
    await wait_until(lambda: len(decode.cancelled) == 1)
