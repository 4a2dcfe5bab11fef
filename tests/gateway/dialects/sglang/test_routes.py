"""SGLang's native routes over HTTP: names, shapes and aborts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dialects.sglang.routes import native_call
from gateway.words.limits import Limits
from runtime.settings import HttpLimits
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, events, running, wait_until
from tests.gateway.folders import EOS, byte_tokenizer, write_folder

TEXT = "one two three four"


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


async def test_grammars_are_those_of_completions(setting: Setting) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<"]}
    values = {"regex": "a+", "json_schema": '{"type": "object"}', "ebnf": 'root ::= "a"', "structural_tag": tag}
    for field, value in values.items():
        await setting.complete([1], max_tokens=4, **{field: value})
        params = [{"max_new_tokens": 4}, {"max_new_tokens": 4, field: value}]
        assert (await generate(setting, input_ids=[[1], [1]], sampling_params=params)).status_code == 200
        first, free, bound = setting.workers[1].assigned[-3:]
        assert first.grammar and (free.grammar, bound.grammar) == ("", first.grammar), field
        assert bound.sampling.grammar == first.sampling.grammar


# ---- aborts ----


def test_what_each_id_means() -> None:
    body = {"input_ids": [[1], [2]], "rid": "r", "sampling_params": {"n": 2}}
    call = native_call(json.dumps(body).encode(), Limits(), HttpLimits())
    of_prompts = {"r_0": range(2), "r_1": range(2, 4)}
    of_choices = {f"r_{p}_{c}": range(2 * p + c, 2 * p + c + 1) for p in range(2) for c in range(2)}
    assert call.ids == {**of_choices, **of_prompts, "r": range(4), call.response_id: range(4)}


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Setting]:
    """Its workers fall silent about each request after two tokens."""
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as found:
        await found.add_pair(Behaviour(stop_after=2))
        yield found


async def begun(setting: Setting, number: int) -> None:
    """Waits until so many choices are in flight, with two tokens each."""
    requests = setting.gateway.control.dispatch.requests
    await wait_until(lambda: sum(len(c.token_ids) >= 2 for r in requests for c in r.choices) >= number)


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
    await wait_until(lambda: len(decode.cancelled) >= 1)
    assert len(decode.cancelled) == 1
    assert not calls[1].done()

    await slow.client.post("/abort_request", json={"abort_all": True})
    assert (await calls[1]).status_code == 200
    assert len(slow.gateway.service.in_flight) == 0


async def test_one_prompt_of_several_is_aborted_by_its_own_id(slow: Setting) -> None:
    call = asyncio.create_task(generate(slow, input_ids=[[1], [2]], rid=["a", "b"], stream=True))
    await begun(slow, 2)
    await slow.client.post("/abort_request", json={"rid": "b"})
    decode = slow.workers[1]
    await wait_until(lambda: len(decode.cancelled) >= 1)
    assert len(decode.cancelled) == 1
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


async def test_a_client_that_leaves_is_forgotten(slow: Setting) -> None:
    async with slow.client.stream("POST", "/generate", json={"input_ids": [7], "rid": "r", "stream": True}) as response:
        await anext(response.aiter_lines())
    await wait_until(lambda: len(slow.gateway.service.in_flight) == 0)
    decode = slow.workers[1]
    await wait_until(lambda: len(decode.cancelled) >= 1)
    assert len(decode.cancelled) == 1
    assert decode.cancelled[0].choice == -1, "all of it"


async def test_one_choice_is_aborted_by_its_id(slow: Setting) -> None:
    params = {"n": 2, "max_new_tokens": 9}
    call = asyncio.create_task(generate(slow, input_ids=[[1], [2]], rid="r", sampling_params=params))
    await begun(slow, 4)
    await slow.client.post("/abort_request", json={"rid": "r_1_0"})
    decode = slow.workers[1]
    await wait_until(lambda: len(decode.cancelled) >= 1)
    assert len(decode.cancelled) == 1
    assert decode.cancelled[0].choice == 0 and not call.done()
    await slow.client.post("/abort_request", json={"rid": "r"})
    found = (await call).json()
    assert [each["meta_info"]["id"] for each in found] == ["r_0_0", "r_0_1", "r_1_0", "r_1_1"]
    assert {each["meta_info"]["finish_reason"]["type"] for each in found} == {"abort"}
