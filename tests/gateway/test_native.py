"""SGLang's native routes over HTTP: names, shapes, probes and aborts."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import native
from gateway.limits import Limits
from protocol.errors import QueueFull
from protocol.messages_gateway import Role
from runtime.settings import HttpLimits
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, events, running, wait_until
from tests.gateway.folders import END, EOS, byte_tokenizer, write_folder

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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_may_be_a_special_token_or_begin_within_the_least_tokens(
    setting: Setting, stream: bool
) -> None:
    worker = setting.workers[-1]
    worker.behaviour = Behaviour(script=lambda assign, choice: [*b"abcab", END, *b"cdefgh"], burst=2)
    for stop, least, text in (("<|end|>", 0, "abcab"), ("bca", 4, "a"), ("ab", 4, "abc"), ("ab<|end|>", 1, "abc")):
        rules = {"stop": stop, "min_new_tokens": least, "max_new_tokens": 12, "n": 2}
        response = await generate(setting, text="x", sampling_params=rules, stream=stream)
        assert response.status_code == 200, response.text
        told = filter(None, events(response.text)) if stream else response.json()
        last = {each.get("index", place): each for place, each in enumerate(told)}.values()
        assert [each["text"] for each in last] == [text, text]
        assert [each["meta_info"]["finish_reason"] for each in last] == [{"type": "stop", "matched": stop}] * 2


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
        ({"txt": "a"}, "text", "neither is there"),
        ({"input_ids": [5000]}, "input_ids", "input_ids: got token id 5000"),
        ({"input_ids": [[1], [5000]], "sampling_params": [{}, {}]}, "input_ids", "input_ids[1]: got token id 5000"),
        ({"input_ids": [1] * 600}, "input_ids", "input_ids has 600 tokens"),
        ({"text": ["a"] * 5000}, "text", "text: got 5000 prompts"),
        ({"text": "a", "model": "gpt"}, "model", "model: got 'gpt'"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 9000}},
            "sampling_params.max_new_tokens",
            "and max_new_tokens is 9000",
        ),
        (
            {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 4}},
            "sampling_params.min_new_tokens",
            "sampling_params.min_new_tokens: got 9, expected at most max_new_tokens, which is 4",
        ),
        ({"text": "a", "sampling_params": {"n": 500}}, "sampling_params.n", "sampling_params.n: got 500 choices"),
        (
            {"text": "a", "sampling_params": {"regex": "(a"}},
            "sampling_params.regex",
            "sampling_params.regex: cannot be",
        ),
        (
            {"text": ["a", "b"], "sampling_params": [{}, {"json_schema": "{"}]},
            "sampling_params.json_schema",
            "sampling_params.json_schema: cannot be followed",
        ),
        (
            {"text": "a", "sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}},
            "sampling_params.ebnf",
            "expected one of them",
        ),
        ([1], None, "the body is an array, expected a JSON object"),
    ],
)
async def test_bad_bodies_are_refused_by_sglang_s_names(
    setting: Setting, body: Any, param: str | None, words: str
) -> None:
    response = await setting.client.post("/generate", json=body)
    assert response.status_code == (404 if param == "model" else 400), response.text
    error = response.json()["error"]
    assert words in error["message"] and error["param"] == param, error


@pytest.mark.parametrize("field", ["regex", "json_schema", "ebnf", "structural_tag"])
async def test_grammars_are_those_of_completions(setting: Setting, field: str) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<"]}
    values = {"regex": "a+", "json_schema": '{"type": "object"}', "ebnf": 'root ::= "a"', "structural_tag": tag}
    await setting.complete([1], max_tokens=4, **{field: values[field]})
    params = [{"max_new_tokens": 4}, {"max_new_tokens": 4, field: values[field]}]
    assert (await generate(setting, input_ids=[[1], [1]], sampling_params=params)).status_code == 200
    first, free, bound = setting.workers[1].assigned
    assert first.grammar and (free.grammar, bound.grammar) == ("", first.grammar)
    assert bound.sampling.grammar == first.sampling.grammar


async def test_the_same_request_may_be_put(setting: Setting) -> None:
    body = {"text": "hello", "model": "story", "sampling_params": None, "parallel_batch": True}
    assert (await setting.client.put("/generate", json=body)).json()["text"] == TEXT


async def test_a_time_line_is_told_of_the_last_choice(setting: Setting) -> None:
    body = {"input_ids": [[1], [2]], "timeline": True}
    whole = (await generate(setting, **body)).json()
    streamed = events((await generate(setting, stream=True, **body)).text)[:-1]
    for told in (whole, streamed):
        assert ["timeline" in each["meta_info"] for each in told] == [False] * (len(told) - 1) + [True]


async def test_without_a_limit_128_tokens_are_asked_for(tmp_path: Path) -> None:
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        worker = await setting.add(Role.UNIFIED)
        await generate(setting, input_ids=[1, 2, 3])
        await generate(setting, input_ids=[1, 2, 3], sampling_params={"max_new_tokens": None})
        assert [each.sampling.max_tokens for each in worker.assigned] == [128, 512 - 3]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_token_has_its_log_probability(setting: Setting, stream: bool) -> None:
    """Also the tokens of a stop string, which completions do not tell: ids and log-probabilities have one length."""
    params = {"max_new_tokens": 30, "stop": "three"}
    fields = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    response = await generate(setting, input_ids=[1], sampling_params=params, stream=stream, **fields)
    told = events(response.text)[-2] if stream else response.json()
    assert told["text"] == "one two "
    ids, meta = told["output_ids"], told["meta_info"]
    assert ids == IDS[: len("one two three")]
    assert meta["output_token_logprobs"] == [[-0.5, each, chr(each)] for each in ids]
    assert meta["output_top_logprobs"] == [[[-0.5, i, chr(i)], [-1.5, i + 1, chr(i + 1)]] for i in ids]
    assert meta["input_token_logprobs"] == meta["input_top_logprobs"] == []

    plain = (await generate(setting, input_ids=[1], return_logprob=True)).json()["meta_info"]
    assert plain["output_token_logprobs"][0] == [-0.5, IDS[0], None] and "output_top_logprobs" not in plain
    assert "output_token_logprobs" not in (await generate(setting, input_ids=[1])).json()["meta_info"]


@pytest.mark.parametrize("interval", [1, 5, 99])
async def test_an_event_may_have_several_tokens(setting: Setting, interval: int) -> None:
    params = {"max_new_tokens": 14, "stream_interval": interval}
    found = events((await generate(setting, input_ids=[1], sampling_params=params, stream=True)).text)[:-1]
    got = [each["meta_info"]["completion_tokens"] for each in found]
    assert got[0] >= 1 and got[-1] == 14 and found[-1]["text"] == TEXT[:14]
    assert all(later - earlier >= interval for earlier, later in pairwise(got[:-1]))


# ---- probes ----


async def test_a_probe_generates_a_token(setting: Setting) -> None:
    response = await setting.client.get("/health_generate")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    decode = setting.workers[1]
    assert [(each.prompt_ids, each.sampling.max_tokens) for each in decode.assigned] == [((0,), 1)]


async def test_a_probe_is_not_counted(setting: Setting) -> None:
    names = ("baton_requests", "baton_prompt_tokens", "baton_generation_tokens", "baton_time_to_first_token")
    before = [line for line in await setting.metrics() if line.startswith(names)]
    await setting.client.get("/health_generate")
    assert before and [line for line in await setting.metrics() if line.startswith(names)] == before


async def test_tokens_of_others_answer_a_probe_that_waits(tmp_path: Path) -> None:
    """Its own prompt waits behind them."""
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        worker = await setting.add_pair(Behaviour(script=lambda assign, _: () if assign.prompt_ids == (0,) else [65]))
        probe = asyncio.create_task(setting.client.get("/health_generate"))
        await worker.until(lambda: len(worker.assigned) == 1)
        await generate(setting, input_ids=[7], sampling_params={"max_new_tokens": 1})
        assert (await probe).json() == {"status": "ok"}
        await wait_until(lambda: len(worker.cancelled) == 1)


async def test_a_probe_that_gets_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "PROBE_S", 0.05)
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        await setting.add_pair(Behaviour(stop_after=0, first_token_late=True, script=lambda *_: ()))
        response = await setting.client.get("/health_generate")
        assert response.status_code == 503 and "no token within 0.05 s" in response.json()["error"]["message"]


async def test_a_probe_for_which_workers_have_no_room_succeeds(tmp_path: Path) -> None:
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        await setting.add(Role.UNIFIED, behaviour=Behaviour(fail_after=0, fail_code=QueueFull.code))
        response = await setting.client.get("/health_generate")
        assert (response.status_code, response.json()["status"]) == (200, "busy")


async def test_a_probe_without_workers_fails(tmp_path: Path) -> None:
    async with running(write_folder(tmp_path / "story", byte_tokenizer())) as setting:
        response = await setting.client.get("/health_generate")
        assert response.status_code == 503 and "retry-after" in response.headers


# ---- aborts ----


def test_what_each_id_means() -> None:
    body = {"input_ids": [[1], [2]], "rid": "r", "sampling_params": {"n": 2}}
    call = native.native_call(json.dumps(body).encode(), Limits(), HttpLimits())
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


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": 7}, {"abort_all": "yes"}])
async def test_an_abort_names_something(setting: Setting, body: Any) -> None:
    response = await setting.client.post("/abort_request", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] in ("rid", "abort_all")


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
