import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.sglang.fields import ANY_JSON, EACH, INSIDE, GenerateRequest, NativeSampling
from gateway.dialects.sglang.read import NAMES, asks_of
from gateway.dialects.sglang.routes import native_call
from gateway.dialects.sglang.unsupported import OF_BODY, OF_SAMPLING, refuse_unsupported_native
from gateway.dialects.shared.json_body import validated
from gateway.generation.translate import Translator
from gateway.text.chat_template import ChatTemplates
from gateway.text.model_folder import read_model_folder
from gateway.words.limits import NO_LIMITS
from gateway.words.places import FIRST_PROMPT, SAMPLING, field
from gateway.words.request import Ask, Grammar, PromptIds, PromptText
from protocol.errors import BadRequest
from runtime.settings import HttpLimits
from tests.gateway.folders import write_folder

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


def only(body: dict[str, Any]) -> Ask:
    [ask] = asks_of(checked(body))
    return ask


def test_the_bodies_of_benchmarks() -> None:
    body = checked(BENCH)
    [ask] = asks_of(body)
    assert body.is_list and len(ask.prompts) == 2 and body.intervals == [1, 1]
    assert (ask.max_tokens, ask.sampling.temperature, ask.ignore_eos) == (8, 0.0, True)
    assert ask.scores is None and body.stream


def test_values_that_change_nothing_pass() -> None:
    for place in (0, -1):
        body = {name: (None, *values)[place] for name, values in OF_BODY.items()}
        params = {name: (None, *values)[place] for name, values in OF_SAMPLING.items()}
        assert only({"text": "a", **body, "sampling_params": params}).num_choices == 1


def test_each_field_has_its_place() -> None:
    params = {"max_new_tokens": 9, "min_new_tokens": 2, "sampling_seed": -7, "top_k": 5, "stop": ["a"], "regex": "a+"}
    ask = only({"text": "a", "sampling_params": params, "priority": 3, "cache_salt": "s", "timeline": True})
    assert (ask.max_tokens, ask.min_tokens, ask.sampling.seed, ask.sampling.top_k) == (9, 2, -7, 5)
    assert (ask.stops, ask.shape, ask.priority, ask.cache_salt) == (("a",), Grammar("regex", "a+"), 3, "s")
    assert ask.timeline and ask.prompts == [PromptText("a")] and ask.origins[FIRST_PROMPT].path == "text"


@pytest.mark.parametrize(
    ("params", "limit"),
    [(None, 128), ({}, 128), ({"max_new_tokens": None}, None), ([{}], 128), ([{"max_new_tokens": None}], None)],
)
def test_the_limit_that_counts_without_one(params: Any, limit: int | None) -> None:
    assert only({"text": ["a"], "sampling_params": params}).default_tokens == limit


def test_sglang_s_word_for_any_json() -> None:
    assert only({"text": "a", "sampling_params": {"json_schema": ANY_JSON}}).shape == Grammar("json", True)


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
    first, second = asks_of(body)
    assert (first.prompts, first.max_tokens, first.scores, first.cache_salt) == ([PromptIds([1])], 1, 2, "x")
    assert (second.prompts, second.sampling.temperature, second.scores) == ([PromptIds([2, 3])], 0.5, None)
    assert (second.cache_salt, second.origins[FIRST_PROMPT].path, body.intervals) == ("y", "input_ids[1]", [4, 1])


def test_fields_that_may_have_a_value_for_each_prompt_are_known() -> None:
    """Those whose lists are measured before their items are read."""
    lists = {name for name, field in GenerateRequest.model_fields.items() if "list[" in str(field.annotation)}
    assert set(EACH) == lists - {"text", "input_ids"}


@pytest.mark.parametrize("name", EACH)
def test_the_route_measures_such_lists_first(name: str) -> None:
    raw = json.dumps({"text": "a", name: [{}] * 5}).encode()
    with pytest.raises(BadRequest, match=f"{name}: has 5 items, expected at most 4"):
        native_call(raw, NO_LIMITS, HttpLimits(max_prompts=4))


def test_each_place_has_the_name_of_a_field() -> None:
    """But for two rules that OpenAI's API alone has: a fault of others may speak of bad words."""
    lacking = {(*SAMPLING, "bad_words"), (*SAMPLING, "allowed_token_ids")}
    for place, origin in NAMES.items():
        if origin.path.startswith(INSIDE):
            assert origin == (INSIDE + origin.short, INSIDE + origin.short, origin.short)
            assert (origin.short in NativeSampling.model_fields) is (place not in lacking)
        else:
            assert origin == field(origin.path) and origin.path in GenerateRequest.model_fields


@pytest.mark.parametrize(
    ("params", "message", "param"),
    [
        (
            {"min_new_tokens": 9, "max_new_tokens": 3},
            "got 9, expected at most max_new_tokens, which is 3",
            "min_new_tokens",
        ),
        ({"regex": "a", "ebnf": "b"}, "got a grammar beside regex, expected one of them", "ebnf"),
    ],
)
def test_a_fault_names_the_fields_of_this_api(tmp_path: Path, params: dict[str, Any], message: str, param: str) -> None:
    translator = Translator(read_model_folder(write_folder(tmp_path)), None, ChatTemplates({}, {}))
    with pytest.raises(BadRequest) as caught:
        translator.prompts(only({"input_ids": [1], "sampling_params": params}), NO_LIMITS)
    assert (caught.value.message, caught.value.param) == (f"{INSIDE}{param}: {message}", INSIDE + param)
