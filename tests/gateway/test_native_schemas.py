import json
from typing import Any

import pytest

from gateway.limits import NO_LIMITS
from gateway.native import native_call
from gateway.native_schemas import ANY_JSON, EACH, AbortRequest, GenerateRequest, check_lengths
from gateway.native_unsupported import OF_BODY, OF_SAMPLING, refuse_unsupported_native
from gateway.schemas import CompletionRequest, validated
from protocol.errors import BadRequest
from runtime.settings import HttpLimits

BENCH: dict[str, Any] = {  # as SGLang's bench_serving and one_batch_server write it
    "input_ids": [[1, 2], [3]],
    "sampling_params": {
        "temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True, "json_schema": None, "stream_interval": 1,
    },
    "stream": True,
    "lora_path": None,
    "return_logprob": False,
    "return_routed_experts": False,
    "logprob_start_len": -1,
}  # fmt: skip


def checked(body: dict[str, Any]) -> GenerateRequest:
    refuse_unsupported_native(body)
    return validated(GenerateRequest, body)


def only(body: dict[str, Any]) -> CompletionRequest:
    [request] = checked(body).requests()
    return request


def test_the_bodies_of_benchmarks() -> None:
    body = checked(BENCH)
    [request] = body.requests()
    assert body.is_list and request.num_prompts == 2 and body.intervals == [1, 1]
    assert (request.max_tokens, request.temperature, request.ignore_eos) == (8, 0.0, True)
    assert request.logprobs is None and request.stream


def test_values_that_change_nothing_pass() -> None:
    for place in (0, -1):
        body = {name: (None, *values)[place] for name, values in OF_BODY.items()}
        params = {name: (None, *values)[place] for name, values in OF_SAMPLING.items()}
        assert only({"text": "a", **body, "sampling_params": params}).num_choices == 1


def test_fields_have_openai_s_names_behind_it() -> None:
    params = {"max_new_tokens": 9, "min_new_tokens": 2, "sampling_seed": -7, "top_k": 5, "stop": ["a"], "regex": "a+"}
    request = only({"text": "a", "sampling_params": params, "priority": 3, "cache_salt": "s", "timeline": True})
    assert (request.max_tokens, request.min_tokens, request.seed, request.top_k) == (9, 2, -7, 5)
    assert (request.stop, request.regex, request.priority, request.cache_salt) == (["a"], "a+", 3, "s")
    assert request.timeline and request.prompts == ["a"] and request.prompt_name == "text"


@pytest.mark.parametrize(
    ("params", "limit"),
    [(None, 128), ({}, 128), ({"max_new_tokens": None}, None), ([{}], 128), ([{"max_new_tokens": None}], None)],
)
def test_the_limit_that_counts_without_one(params: Any, limit: int | None) -> None:
    assert only({"text": ["a"], "sampling_params": params}).default_tokens == limit


def test_sglang_s_word_for_any_json() -> None:
    assert only({"text": "a", "sampling_params": {"json_schema": ANY_JSON}}).json_schema is True


def test_values_for_each_prompt() -> None:
    params = [{"max_new_tokens": 1, "stream_interval": 4}, {"temperature": 0.5}]
    body = checked(
        {
            "input_ids": [[1], [2, 3]],
            "sampling_params": params,
            "return_logprob": [True, False],
            "top_logprobs_num": [2, 3],
            "cache_salt": ["x", "y"],
        }
    )
    first, second = body.requests()
    assert (first.prompts, first.max_tokens, first.logprobs, first.cache_salt) == ([[1]], 1, 2, "x")
    assert (second.prompts, second.temperature, second.logprobs, second.cache_salt) == ([[2, 3]], 0.5, None, "y")
    assert (second.prompt_name, body.intervals) == ("input_ids[1]", [4, 1])


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs_num": 3}, None),
        ({"return_logprob": True}, 0),
        ({"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": -1}, 3),
        ({"return_logprob": False, "logprob_start_len": 0}, None),
    ],
)
def test_log_probabilities_that_are_asked_for(fields: dict[str, Any], logprobs: int | None) -> None:
    assert only({"text": "a", **fields}).logprobs == logprobs


@pytest.mark.parametrize(
    ("prompt", "rid", "names"),
    [
        ("x", "r", ["r"]),
        ("x", None, ["own"]),
        (["x", "y"], "r", ["r_0", "r_1"]),
        (["x", "y"], None, ["own_0", "own_1"]),
        (["x", "y"], ["a", "b"], ["a", "b"]),
        ("x", ["a"], ["a"]),
    ],
)
def test_names_of_prompts(prompt: Any, rid: Any, names: list[str]) -> None:
    assert checked({"text": prompt, "rid": rid}).names("own") == names


TWO: dict[str, Any] = {"text": ["a", "b"]}
ONE: dict[str, Any] = {"text": "a"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({}, "text, input_ids: neither is there, expected one of them"),
    "two prompts": (ONE | {"input_ids": [1]}, "text, input_ids: both are there"),
    "a prompt of completions": ({"prompt": "a"}, "neither is there"),
    "no ids": ({"input_ids": []}, "input_ids: "),
    "ids of text": ({"input_ids": ["a"]}, "input_ids.0: got 'a', expected an integer"),
    "params of others": (ONE | {"sampling_params": [{}, {}]}, "has 2 items, expected 1, one for each prompt"),
    "params of none": (TWO | {"sampling_params": []}, "sampling_params: "),
    "no object": (ONE | {"sampling_params": 5}, "sampling_params: got 5, expected an object"),
    "n": (TWO | {"sampling_params": [{"n": 1}, {"n": 2}]}, "got n of 1 and 2, expected the same for all prompts"),
    "rids": (TWO | {"rid": ["r", "r"]}, "rid: got an id twice"),
    "too few rids": (TWO | {"rid": ["r"]}, "rid: has 1 items, expected 2"),
    "too few salts": (TWO | {"cache_salt": ["r"]}, "cache_salt: has 1 items, expected 2"),
    "a value": (ONE | {"sampling_params": {"temperature": -1}}, "sampling_params.temperature: got -1, expected at"),
    "of a list": (
        TWO | {"sampling_params": [{}, {"top_p": 2}]},
        r"sampling_params.1.top_p: got 2, expected at most 1",
    ),
    "outside": (ONE | {"temperature": 0}, "temperature: got 0, expected it in sampling_params"),
    "another name": (ONE | {"sampling_params": {"max_tokens": 5}}, "max_tokens: got 5, expected it as max_new_tokens"),
    "misspelt": (ONE | {"sampling_params": {"max_new_token": 5}}, "sampling_params.max_new_token: unknown field"),
    "misspelt field": (ONE | {"sampling_param": {}}, "sampling_param: unknown field, expected sampling_params"),
    "not supported": (ONE | {"sampling_params": {"no_stop_trim": True}}, "sampling_params.no_stop_trim: got true, whi"),
    "from before the prompt": (
        ONE | {"return_logprob": True, "logprob_start_len": -2},
        "logprob_start_len: got -2, expected at least -1",
    ),
    "a start for another": (TWO | {"return_logprob": True, "logprob_start_len": [5]}, "logprob_start_len: has 1 items"),
    "too many": (
        ONE | {"return_logprob": True, "top_logprobs_num": 21},
        "top_logprobs_num: got 21, expected at most 20",
    ),
    "images": (ONE | {"image_data": "x.png"}, "image_data: got 'x.png', which is not supported"),
    "a router": (ONE | {"bootstrap_room": 0}, "bootstrap_room: got 0, which is not supported"),
    "marks of a router": (ONE | {"rid": ["x___decode_addr_b"]}, "rid: got 'x___decode_addr_b'"),
}


def asked(body: dict[str, Any]) -> None:
    found = checked(body)
    found.requests()
    found.names("own")


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies(case: str) -> None:
    body, message = BAD[case]
    with pytest.raises(BadRequest, match=message) as caught:
        asked(body)
    assert caught.value.param and caught.value.param in caught.value.message.partition(":")[0]


def test_aborts() -> None:
    assert validated(AbortRequest, {"abort_all": True, "rid": None}).abort_all
    with pytest.raises(BadRequest, match="rid: has 300 characters, expected at most 256"):
        validated(AbortRequest, {"rid": "r" * 300})


def test_fields_that_may_have_a_value_for_each_prompt_are_known() -> None:
    """Those whose lists are measured before their items are read."""
    lists = {name for name, field in GenerateRequest.model_fields.items() if "list[" in str(field.annotation)}
    assert set(EACH) == lists - {"text", "input_ids"}


@pytest.mark.parametrize("name", EACH)
def test_a_list_that_is_longer_than_any_prompts_is_refused_before_its_items_are_read(name: str) -> None:
    items = [object()] * 5
    check_lengths({name: items}, 5)
    check_lengths({name: None}, 5)
    with pytest.raises(BadRequest, match=f"{name}: has 5 items, expected at most 4") as caught:
        check_lengths({name: items}, 4)
    assert caught.value.param == name


@pytest.mark.parametrize("name", EACH)
def test_the_route_measures_such_lists_first(name: str) -> None:
    raw = json.dumps({"text": "a", name: [{}] * 5}).encode()
    with pytest.raises(BadRequest, match=f"{name}: has 5 items, expected at most 4"):
        native_call(raw, NO_LIMITS, HttpLimits(max_prompts=4))
