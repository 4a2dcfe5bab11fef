"""Requests whose answers are kept byte for byte: each route, whole and streamed, and each kind of fault.

A fleet is what serves a request: one worker of the bundled model's shape that makes up its tokens, or one that fails.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.gateway.bad_input import bodies, conversations, fields, wire
from tests.gateway.bad_input.case import CHAT, COMPLETIONS, Case, post

GENERATE: Final = "/generate"
TEXT: Final = "Once upon a time"
IDS: Final = [70, 300, 22]
MESSAGES: Final = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tell me a story."}]
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG: Final = {
    "type": "structural_tag",
    "structures": [{"begin": "<call>", "schema": {"type": "object"}, "end": "</call>"}],
    "triggers": ["<call>"],
}
Fields = dict[str, Any]

# What the two routes of OpenAI's API share.
SHARED: Final[tuple[Fields, ...]] = (
    {},
    {"n": 2},
    {"n": 3, "max_tokens": 5, "seed": 7},
    {"max_tokens": 1},
    {"max_completion_tokens": 3, "max_tokens": 9},
    {"max_tokens": 40},
    {"max_tokens": 40, "ignore_eos": True},
    {"min_tokens": 4, "max_tokens": 6},
    {"stop": "fox"},
    {"stop": ["zzz", " a"], "n": 2},
    {"stop": "\u00e9", "min_tokens": 3},
    {"stop": "never there"},
    {"stop": "<|im_end|>", "max_tokens": 80, "min_tokens": 3, "ignore_eos": True},
    {"stop_token_ids": [300, 301, 302]},
    {"return_token_ids": True},
    {"return_token_ids": True, "n": 2, "stop": " a"},
    {"skip_special_tokens": False, "max_tokens": 40},
    {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 1},
    {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1},
    {"logit_bias": {"50": -100, "7": 2.5}, "bad_words": ["dog", "once upon"]},
    {"allowed_token_ids": [5, 6, 7]},
    {"cache_salt": "tenant", "priority": -5, "user": "me"},
    {"timeline": True},
    {"unheard_of": [1, {"a": None}]},
    {"model": "story"},
    {"model": None, "temperature": None, "stop": None, "n": None},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
    {"response_format": TAG},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    {"guided_json": SCHEMA},
    {"guided_regex": "[0-9]{4}"},
    {"guided_choice": ["yes", "no"], "n": 2},
    {"guided_grammar": 'root ::= "yes" | "no"'},
    {"guided_grammar": 'start: "yes" | "no"'},
    {"regex": "a+b", "max_tokens": 4},
)
OF_COMPLETIONS: Final[tuple[Fields, ...]] = (
    {"prompt": IDS},
    {"prompt": [TEXT, "The fox"]},
    {"prompt": [IDS, [5], [6, 7]], "n": 2, "max_tokens": 3},
    {"prompt": "caf\u00e9 \U0001f600\n"},
    {"add_special_tokens": False},
    {"echo": True},
    {"echo": True, "max_tokens": 0},
    {"echo": True, "logprobs": 2, "stop": ["time", "fox"]},
    {"echo": True, "logprobs": 2, "max_tokens": 0, "return_token_ids": True},
    {"prompt": [IDS, [5], [6, 7]], "echo": True, "logprobs": 0, "n": 2, "max_tokens": 2},
    {"echo": True, "logprobs": 2, "max_tokens": 3},
    {"echo": True, "logprobs": 0, "max_tokens": 0, "n": 2},
    {"prompt": IDS, "echo": True, "logprobs": 1, "max_tokens": 2, "return_token_ids": True},
    {"logprobs": 0},
    {"logprobs": 3, "n": 2, "max_tokens": 5},
    {"logprobs": 2, "return_tokens_as_token_ids": True},
    {"logprobs": 1, "stop": "fox", "return_token_ids": True},
)
OF_CHATS: Final[tuple[Fields, ...]] = (
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Tell "}, {"type": "text", "text": "me."}]}]},
    {"messages": [*MESSAGES, {"role": "assistant", "content": "Once"}], "echo": True},
    {"messages": MESSAGES, "echo": True, "logprobs": True},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "5"}]},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    {"add_special_tokens": True},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 3, "n": 2, "max_tokens": 5},
    {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True},
    {"logprobs": True, "top_logprobs": 2, "stop": "fox", "return_token_ids": True},
)
WHOLE_ONLY: Final[tuple[Fields, ...]] = ({"prompt_logprobs": 0}, {"prompt_logprobs": 2, "max_tokens": 2, "n": 2})
TOOLS: Final[list[Fields]] = [
    {"type": "function", "function": {"name": name, "description": "It helps.", "parameters": {"type": "object"}}}
    for name in ("add", "look_up")
]
CALLED: Final[Fields] = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "They want a sum.",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}
RESULT: Final[Fields] = {"role": "tool", "tool_call_id": "1", "content": "5"}
WITH_TOOLS: Final[tuple[Fields, ...]] = (
    {},
    {"n": 2},
    {"max_tokens": 45},
    {"max_tokens": 12},
    {"tool_choice": "auto", "stop": ["fox", "17"]},
    {"stop": "I add", "n": 2},
    {"tool_choice": "none"},
    {"parallel_tool_calls": False},
    {"tools": None},
    {"return_token_ids": True, "max_tokens": 60},
    {"logprobs": True, "top_logprobs": 1, "max_tokens": 40},
    {"skip_special_tokens": False, "n": 3},
    {"messages": [*MESSAGES, CALLED, RESULT], "n": 2},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    {"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]},
    {"response_format": {"type": "json_object"}},
)
STREAM_OPTIONS: Final[tuple[Fields, ...]] = (
    {"include_usage": True},
    {"include_usage": True, "continuous_usage_stats": True},
    {"continuous_usage_stats": True},
)
OF_GENERATE: Final[tuple[Fields, ...]] = (
    {"text": TEXT},
    {"input_ids": IDS},
    {"text": [TEXT, "The fox"]},
    {"input_ids": [IDS, [5]], "sampling_params": [{"max_new_tokens": 2}, {"max_new_tokens": 4, "stop": "fox"}]},
    {"text": [TEXT]},
    {"text": TEXT, "sampling_params": {"n": 2}},
    {"text": [TEXT, "b"], "sampling_params": {"n": 2, "max_new_tokens": 3}, "rid": ["x", "y"]},
    {"text": TEXT, "rid": "mine", "sampling_params": {"max_new_tokens": None, "stop": ["fox", "zzz"]}},
    {"text": TEXT, "sampling_params": {"min_new_tokens": 3, "max_new_tokens": 9, "sampling_seed": 4}},
    {"text": TEXT, "sampling_params": {"stream_interval": 3}},
    {"text": TEXT, "sampling_params": {"max_new_tokens": 40, "ignore_eos": True, "skip_special_tokens": False}},
    {"text": TEXT, "sampling_params": {"stop_token_ids": [300, 301, 302]}},
    {"text": TEXT, "return_logprob": True},
    {"text": TEXT, "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True},
    {"text": TEXT, "return_logprob": True, "top_logprobs_num": 1, "sampling_params": {"stop": "a c"}},
    {"text": TEXT, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 3}},
    {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 1},
    {"input_ids": IDS, "return_logprob": True, "logprob_start_len": 1, "sampling_params": {"max_new_tokens": 0}},
    {"text": [TEXT, "b"], "return_logprob": [True, False], "top_logprobs_num": [1, 0]},
    {"input_ids": [IDS, [5, 6], [7]], "return_logprob": [True, True, False], "logprob_start_len": [1, -1, 0]},
    {"text": [TEXT, "b"], "timeline": True, "rid": "r"},
    {"text": TEXT, "rid": ["a"], "parallel_batch": True},
    {"input_ids": [IDS], "sampling_params": [{"ignore_eos": True}]},
    {"text": TEXT, "sampling_params": {"stop": "<|im_end|>", "ignore_eos": True, "max_new_tokens": 80}},
    {"text": TEXT, "sampling_params": {"json_schema": json.dumps(SCHEMA)}},
    {"text": TEXT, "sampling_params": {"json_schema": "$$ANY$$"}},
    {"text": TEXT, "sampling_params": {"regex": "a+b"}},
    {"text": TEXT, "sampling_params": {"ebnf": 'root ::= "a"'}},
    {"text": TEXT, "cache_salt": "tenant", "priority": 3, "timeline": True, "add_special_tokens": False},
)
BAD_GENERATE: Final[tuple[Fields, ...]] = (
    {},
    {"text": TEXT, "input_ids": IDS},
    {"text": 5},
    {"text": []},
    {"input_ids": [[]]},
    {"input_ids": [5, "a"]},
    {"input_ids": [99999]},
    {"text": TEXT, "sampling_params": 5},
    {"text": TEXT, "sampling_params": {"temperature": 3}},
    {"text": TEXT, "sampling_params": {"max_tokens": 3}},
    {"text": TEXT, "sampling_params": {"max_new_tokens": -1}},
    {"text": TEXT, "sampling_params": {"max_new_tokens": 5000}},
    {"text": TEXT, "sampling_params": {"max_new_tokens": 0}},
    {"text": TEXT, "sampling_params": {"min_new_tokens": 5, "max_new_tokens": 3}},
    {"text": TEXT, "sampling_params": {"stop_token_ids": [99999]}},
    {"text": TEXT, "sampling_params": {"n": 1000}},
    {"text": TEXT, "sampling_params": {"regex": "(a"}},
    {"text": TEXT, "sampling_params": {"json_schema": "{"}},
    {"text": TEXT, "sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}},
    {"text": TEXT, "sampling_params": {"stop_regex": "a"}},
    {"text": TEXT, "sampling_params": {"temprature": 1}},
    {"text": TEXT, "temperature": 1},
    {"text": TEXT, "image_data": "x"},
    {"text": TEXT, "bootstrap_host": "a", "bootstrap_port": 1, "bootstrap_room": 1},
    {"text": TEXT, "rid": ""},
    {"text": [TEXT, "b"], "rid": ["x"]},
    {"text": [TEXT, "b"], "rid": ["x", "x"]},
    {"text": [TEXT, "b"], "sampling_params": [{"n": 1}, {"n": 2}]},
    {"text": TEXT, "return_logprob": True, "logprob_start_len": 500},
    {"text": TEXT, "top_logprobs_num": 21},
    {"text": TEXT, "return_logprob": True, "logprob_start_len": -2},
    {"input_ids": [[1], [2, 3]], "return_logprob": True, "logprob_start_len": [0, 2]},
    {"text": [TEXT, "b"], "return_logprob": True, "logprob_start_len": [5]},
    {"text": [TEXT, "b"], "cache_salt": ["r"]},
    {"text": [TEXT, "b"], "sampling_params": []},
    {"text": [TEXT, "b"], "sampling_params": [{}, {"top_p": 2}]},
    {"text": [TEXT, "b"], "sampling_params": [{}, {"json_schema": "{"}]},
    {"text": TEXT, "sampling_params": [{}, {}]},
    {"text": TEXT, "sampling_params": {"no_stop_trim": True}},
    {"text": TEXT, "rid": ["x___decode_addr_b"]},
    {"text": TEXT, "rid": "r" * 300},
    {"text": TEXT, "sampling_param": {}},
    {"input_ids": [[1], [5000]], "sampling_params": [{}, {}]},
    {"input_ids": [1] * 3000},
    {"prompt": TEXT},
    {"text": TEXT, "stream": 1},
    {"text": TEXT, "model": "other"},
    {"text": [TEXT] * 5000},
    {"text": "x " * 5000},
)
TOKENIZE: Final[tuple[Fields, ...]] = (
    {"prompt": TEXT},
    {"prompt": "caf\u00e9 \U0001f600<|im_end|>", "return_token_strs": True},
    {"prompt": "", "model": "story"},
    {"messages": MESSAGES},
    {"messages": MESSAGES, "return_token_strs": True, "add_special_tokens": True},
    {"messages": MESSAGES, "add_generation_prompt": False, "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low"},
    {"messages": [{"role": "user", "content": "<|im_end|>"}], "tools": [], "return_token_strs": True},
    {"prompt": "x " * 5000},
    {},
    {"prompt": TEXT, "messages": MESSAGES},
    {"prompt": [1, 2]},
    {"prompt": TEXT, "model": "other"},
    {"prompt": TEXT, "return_token_strs": 1},
    {"messages": []},
    {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "add"}}]},
    {"messages": [{"role": "tool", "content": "5", "tool_call_id": "1"}]},
    {"messages": MESSAGES, "continue_final_message": True},
    {"messages": MESSAGES, "add_generation_promt": False},
)
DETOKENIZE: Final[tuple[Fields, ...]] = (
    {"tokens": IDS},
    {"tokens": [1, 70, 2, 0], "model": "story"},
    {"tokens": []},
    {},
    {"tokens": "a"},
    {"tokens": [[1]]},
    {"tokens": [1, -1]},
    {"tokens": [1, 99999]},
    {"tokens": IDS, "model": "other"},
)
OTHER_ROUTES: Final[tuple[tuple[str, str, Fields | None], ...]] = (
    *(
        ("GET", path, None)
        for path in "/v1/models /v1/models/story /v1/models/other /health /ping /version / /v1".split()
    ),
    *(("GET", path, None) for path in "/server_info /get_server_info /model_info /get_model_info /nowhere".split()),
    *(("GET", path, None) for path in (COMPLETIONS, CHAT, GENERATE)),
    ("GET", "/health_generate", None),
    ("POST", "/flush_cache", {}),
    ("POST", "/reset_prefix_cache", {}),
    ("PUT", "/generate", {"text": TEXT, "model": "story", "sampling_params": None}),
    ("POST", "/abort_request", {"rid": "x"}),
    ("POST", "/abort_request", {"abort_all": True}),
    ("POST", "/abort_request", {}),
    ("POST", "/abort_request", {"rid": 5}),
    ("POST", "/abort_request", {"rid": ""}),
    ("POST", "/abort_request", {"rid": "r" * 300}),
    ("POST", "/abort_request", {"abort_all": "yes"}),
    ("POST", "/v1/models", {}),
)
FLEETS: Final = ("one", "none", "fails at once", "fails in the middle", "calls")


@dataclass(frozen=True)
class Ask:
    """One request: what is sent, and the fleet that serves it."""

    name: str
    parts: tuple[bytes, ...]
    fleet: str = "one"


def all_asks() -> list[Ask]:
    """All of them; each name once."""
    found = [*_answered(), *_refused(), *_failing(), *_others(), *_tokenized(), *_calling()]
    assert len({each.name for each in found}) == len(found), "two asks have one name"
    return found


def bad_cases() -> dict[str, Case]:
    """Bad input, by its name among all."""
    kinds = {"bodies": bodies, "conversations": conversations, "fields": fields, "wire": wire}
    return {
        f"{kind} {place}: {case.name}": case
        for kind, cases in kinds.items()
        for place, case in enumerate(cases.all_cases())
    }


def _posted(path: str, body: Fields, fleet: str = "one") -> Ask:
    text = json.dumps(body)
    name = f"{fleet}: {path} {text if len(text) <= 400 else f'{text[:400]}... {len(text)}'}"
    return Ask(name, post(path, text.encode()), fleet)


def _answered() -> Iterator[Ask]:
    base: Fields = {"max_tokens": 12}
    for path, prompt, of_route in (
        (COMPLETIONS, {"prompt": TEXT}, OF_COMPLETIONS),
        (CHAT, {"messages": MESSAGES}, OF_CHATS),
    ):
        for asked in (*SHARED, *of_route):
            yield _posted(path, {**prompt, **base, **asked})
            yield _posted(path, {**prompt, **base, **asked, "stream": True})
        for asked in WHOLE_ONLY:
            yield _posted(path, {**prompt, **base, **asked})
        for options in STREAM_OPTIONS:
            for more in ({}, {"return_token_ids": True}):
                streamed = {"n": 2, "max_tokens": 3, "stream": True, "stream_options": options, **more}
                yield _posted(path, {**prompt, **streamed})
    for asked in OF_GENERATE:
        of_each = asked.get("sampling_params", {})
        params = of_each if isinstance(of_each, list) else {"max_new_tokens": 12, **of_each}
        yield _posted(GENERATE, {**asked, "sampling_params": params})
        yield _posted(GENERATE, {**asked, "sampling_params": params, "stream": True})


def _refused() -> Iterator[Ask]:
    for name, case in bad_cases().items():
        yield Ask(name, case.parts)
    for asked in BAD_GENERATE:
        yield _posted(GENERATE, asked)


def _failing() -> Iterator[Ask]:
    for fleet in FLEETS[1:4]:
        for stream in (False, True):
            yield _posted(COMPLETIONS, {"prompt": TEXT, "max_tokens": 8, "stream": stream}, fleet)
            yield _posted(CHAT, {"messages": MESSAGES, "max_tokens": 8, "stream": stream, "n": 2}, fleet)
            yield _posted(GENERATE, {"text": TEXT, "sampling_params": {"max_new_tokens": 8}, "stream": stream}, fleet)


def _others() -> Iterator[Ask]:
    for fleet in FLEETS[:2]:
        for method, path, body in OTHER_ROUTES:
            raw = b"" if body is None else json.dumps(body).encode()
            head, content = post(path, raw)
            name = f"{fleet}: {method} {path}{'' if body is None else f' {json.dumps(body)}'}"
            yield Ask(name, (head.replace(b"POST", method.encode(), 1), content), fleet)


def _tokenized() -> Iterator[Ask]:
    for path, bodies_of_path in (("/tokenize", TOKENIZE), ("/detokenize", DETOKENIZE)):
        for body in bodies_of_path:
            yield _posted(path, body)


def _calling() -> Iterator[Ask]:
    base: Fields = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 400}
    for asked in WITH_TOOLS:
        yield _posted(CHAT, base | asked, "calls")
        yield _posted(CHAT, base | asked | {"stream": True, "stream_options": {"include_usage": True}}, "calls")
    every = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    yield _posted(CHAT, base | every | {"max_tokens": 30}, "calls")
    yield _posted("/tokenize", {"messages": [*MESSAGES, CALLED, RESULT], "tools": TOOLS}, "calls")
    yield _posted(GENERATE, {"text": TEXT, "sampling_params": {"max_new_tokens": 30}}, "calls")
    yield _posted(COMPLETIONS, {"prompt": TEXT, "max_tokens": 30}, "calls")
