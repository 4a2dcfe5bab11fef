import json
from typing import Any

import pytest

from gateway.json_body import validated
from gateway.limits import NO_LIMITS
from gateway.native import native_call
from gateway.native_schemas import ANY_JSON, EACH, GenerateRequest
from gateway.native_unsupported import OF_BODY, OF_SAMPLING, refuse_unsupported_native
from gateway.schemas import CompletionRequest
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


def test_fields_that_may_have_a_value_for_each_prompt_are_known() -> None:
    """Those whose lists are measured before their items are read."""
    lists = {name for name, field in GenerateRequest.model_fields.items() if "list[" in str(field.annotation)}
    assert set(EACH) == lists - {"text", "input_ids"}


@pytest.mark.parametrize("name", EACH)
def test_the_route_measures_such_lists_first(name: str) -> None:
    raw = json.dumps({"text": "a", name: [{}] * 5}).encode()
    with pytest.raises(BadRequest, match=f"{name}: has 5 items, expected at most 4"):
        native_call(raw, NO_LIMITS, HttpLimits(max_prompts=4))
