"""The gateway serves each body that a schema of /openapi.json allows, and refuses each that it forbids."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from gateway.app.openapi import add_schemas
from gateway.app.openapi_rules import Bounds
from gateway.dialects.openai.fields import parse
from gateway.dialects.openai.routes import CHATS, COMPLETIONS, Route
from gateway.dialects.openai.unsupported import NEUTRAL, refuse_unsupported
from gateway.dialects.sglang.routes import native_call
from gateway.dialects.sglang.unsupported import OF_BODY, OF_SAMPLING
from gateway.dialects.shared.counts import check_counts
from gateway.dialects.shared.json_body import check_list
from gateway.dialects.shared.sampling_fields import KEYWORDS
from gateway.generation.translate import Translator
from gateway.routing.pairing import Need
from gateway.serving.service import ModelNames
from gateway.text.answer_format import PLAIN, AnswerFormat
from gateway.text.channels.formats import THINK
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format
from gateway.text.chat_template import ChatTemplates
from gateway.text.model_folder import ModelFolder
from gateway.text.tokenizer import SpecialTokens, TextTokenizer
from gateway.words.limits import Limits
from gateway.words.request import Ask, PromptText
from protocol.errors import BadRequest
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics
from runtime.settings import HttpLimits
from tests.gateway.folders import BOS, EOS, TEMPLATE, byte_tokenizer
from tests.gateway.untold import UNTOLD

ROUTES: dict[str, Route[Any]] = {"CompletionRequest": COMPLETIONS, "ChatRequest": CHATS}
LIMITS = Limits(context_length=64, vocab_size=262, pool_tokens=48, prefill_pool_tokens=64, page_size=4, max_choices=8)
HTTP = HttpLimits(max_choices=9, max_prompts=3, max_stop_strings=2)
WITH_TOOLS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}"
WITH_TOOLS += "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}a"
NAMES = ModelNames(("story", "tale"), "models/story/")


class World:
    """A gateway's checks, and its schemas."""

    def __init__(
        self,
        has_tokenizer: bool = True,
        add_bos: bool = False,
        limits: Limits = LIMITS,
        tool_format: str | None = None,
        with_thoughts: bool = False,
    ) -> None:
        special = SpecialTokens({"eos_token": "<|eos|>", "bos_token": "<|bos|>"}, None, None)
        tokenizer = TextTokenizer(byte_tokenizer(add_bos), special) if has_tokenizer else None
        folder = ModelFolder(Path("story"), ModelBasics(64, 262, (EOS,)), SamplingParams(max_tokens=1))
        sources = {"default": TEMPLATE if tool_format is None else WITH_TOOLS, "plain": TEMPLATE, "broken": "{% if"}
        markers = Markers(Format(None, THINK), {"<think>": 1, "</think>": 2}.get) if with_thoughts else PLAIN.markers
        self.translator = Translator(
            folder, tokenizer, ChatTemplates(sources, {}), answers=AnswerFormat(markers, tool_format)
        )
        self.limits = limits
        self.bounds = Bounds(
            names=NAMES.all,
            templates=self.translator.template_names,
            takes_text=self.translator.takes_text,
            takes_empty_text=self.translator.takes_empty_text,
            takes_tools=self.translator.takes_tools,
            takes_budgets=self.translator.takes_budgets,
            limits=limits,
            http=HTTP,
        )
        self.document = add_schemas({"paths": {}}, self.bounds)
        self._validators: dict[str, Draft202012Validator] = {}
        self.schemas: dict[str, Any] = self.document["components"]["schemas"]

    def allows(self, name: str, body: Any) -> bool:
        """Whether the schema allows a body."""
        if name not in self._validators:
            schema = {"$ref": f"#/components/schemas/{name}", **self.document}
            self._validators[name] = Draft202012Validator(schema)
        return self._validators[name].is_valid(body)

    def refusal(self, name: str, body: Any) -> str | None:
        """Why the gateway refuses a body; None if it serves it."""
        try:
            asks = self._native(body) if name == "GenerateRequest" else [self._openai(name, body)]
            NAMES.check(asks[0].model)
            prompts = self.translator.all_prompts(asks, self.limits, [""] * len(asks))
        except BadRequest as error:
            return error.message
        for each in prompts:
            need = Need(len(each.token_ids), each.num_choices, each.sampling.max_tokens)
            assert each.token_ids and need.prompt_tokens + need.max_tokens <= (self.limits.context_length or 2**31)
            assert not self.limits.pool_tokens or need.total_pages(4) <= 12
        return None

    def _openai(self, name: str, body: Any) -> Ask:
        if isinstance(body, dict):
            refuse_unsupported(body, ROUTES[name].body)
            check_list(body.get("prompt"), self.limits)
        route = ROUTES[name]
        ask = route.ask_of(parse(route.body, body))
        check_counts(ask, HTTP)
        return ask

    def _native(self, body: Any) -> Sequence[Ask]:
        return native_call(json.dumps(body).encode(), self.limits, HTTP).asks

    def disagreement(self, name: str, body: Any) -> str | None:
        """What is wrong if schema and gateway do not agree."""
        is_allowed, refusal = self.allows(name, body), self.refusal(name, body)
        if not is_allowed:
            return "the gateway serves what the schema forbids" if refusal is None else None
        return None if refusal is None or UNTOLD.search(refusal) else refusal


@cache
def world(
    has_tokenizer: bool = True, add_bos: bool = False, tool_format: str | None = None, with_thoughts: bool = False
) -> World:
    return World(has_tokenizer, add_bos, tool_format=tool_format, with_thoughts=with_thoughts)


LONG = "x" * 2000
PROMPT: dict[str, Any] = {"prompt": "a"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


def some(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


numbers = some(True, False, -2, -1, 0, 1, 2, 8, 9, 16, 17, 47, 48, 63, 64, 262, 2**31 - 1, 2**31, 0.5, "1")
flags = some(True, False, 0, 1, "true", [], {})
texts = some("", "a", "the end", LONG, 5, [], ["a"], ["a", ""], ["a", "b"], ["a", "b", "c"], [1])
lists = some([], [1], [261], [262], [-1], [1] * 63, [1] * 64, [True], ["1"], [[1]], [1, "a"], 5)
reals = some(True, -0.1, 0, 0.5, 1, 1.0, 2, 2.5, "0", 1e-300)
of_flag = "echo ignore_eos stream skip_special_tokens return_token_ids timeline add_special_tokens unheard_of"
fields: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(
        "max_tokens max_completion_tokens min_tokens n top_k seed priority prompt_logprobs".split(), numbers
    ),
    **dict.fromkeys(("thinking_token_budget", "thinking_budget"), numbers),
    **dict.fromkeys(of_flag.split(), flags),
    **dict.fromkeys("temperature top_p min_p".split(), reals),
    **dict.fromkeys("stop cache_salt user reasoning_effort".split(), texts),
    "stop_token_ids": lists,
    "model": some("story", "tale", "models/story", "gpt", "", 5),
    "stream_options": some({}, {"include_usage": True}, {"include_usage": 1}, {"x": 1}, 5, []),
    "chat_template": some("default", "plain", "broken", "", 5),
    "chat_template_kwargs": some({}, {"a": [1]}, {"messages": []}, {"tools": None}, [], 5),
    "request_id": some("mine", "___prefill_addr_a___decode_addr_b_c", 5),
    "rid": some(["mine"], "x___decode_addr_b_c"),
    **dict.fromkeys(NEUTRAL, flags | reals | texts | some("none", "auto", {"type": "text"}, ["text"])),
    "best_of": some(1, 1.0, True, 0, "1"),  # not what `n` is, and the next one not "none": no rule says so
    "function_call": some("auto", "required", {}),
}
prompts = texts | lists | some([[1], [2]], [[1], []], [[]], [[1]] * 4, ["a"] * 4, [[1] * 64], [[262]], {}, [[1], "a"])
roles = some("system", "developer", "user", "assistant", "tool", "function", "wizard", 5)
parts = some({"type": "text", "text": "a"}, {"type": "text"}, {"type": "image_url"}, {"text": "a"}, "a")
contents = texts | st.lists(parts, max_size=2)
function = some({"name": "f"}, {"name": "f", "arguments": "{}"}, {"name": "f", "arguments": "5"}, {}, 5)
call = st.fixed_dictionaries(
    {}, optional={"id": some("1", 5), "type": some("function", "custom"), "function": function}
)
ids = some("1", "", 5)
message = (
    st.fixed_dictionaries(
        {},
        optional={
            "role": roles,
            "content": contents,
            "name": flags,
            "tool_calls": st.lists(call, max_size=2) | flags,
            "function_call": function,
            "tool_call_id": ids,
            "reasoning": some("", "a", 5),
            "reasoning_content": some("", "a"),
        },
    )
    | flags
)
tool = (
    st.fixed_dictionaries(
        {},
        optional={
            "type": some("function", "custom"),
            "function": some(
                {"name": "f"}, {"name": "g", "parameters": {}}, {"name": "a b"}, {"name": "f", "strict": 1}, {}
            ),
        },
    )
    | flags
)
of_tools = {
    "tools": st.lists(tool, max_size=2) | flags,
    "tool_choice": some(
        "none", "auto", "required", "any", 5, {}, {"type": "function", "function": {"name": "f"}}, {"type": "function"}
    ),
    "parallel_tool_calls": flags,
}
messages = st.lists(message, max_size=3) | flags


letters = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(0.1, 0.9) | letters,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=3),
    max_leaves=6,
)


def bodies(required: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Bodies with a few of the fields. A strategy that draws many fields would seldom draw a body that is served."""
    few = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] | anything for name in names})
    )
    fine: dict[str, Any] = {"prompt": [1, 2], "messages": [{"role": "user", "content": "a"}]}
    alone = st.fixed_dictionaries({required: values | anything})
    return few.map(lambda rest: {required: fine[required], **rest}) | alone | few


@given(bodies("prompt", prompts), st.booleans(), st.booleans())
def test_completions(body: Any, has_tokenizer: bool, add_bos: bool) -> None:
    assert world(has_tokenizer, add_bos).disagreement("CompletionRequest", body) is None


@given(bodies("messages", messages), st.booleans(), st.booleans())
def test_chat(body: Any, add_bos: bool, with_thoughts: bool) -> None:
    assert world(True, add_bos, with_thoughts=with_thoughts).disagreement("ChatRequest", body) is None


@pytest.mark.parametrize("with_thoughts", [False, True])
@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget"])
def test_when_a_budget_of_thoughts_is_taken(name: str, with_thoughts: bool) -> None:
    here = world(with_thoughts=with_thoughts)
    for value, is_taken in ((None, True), (0, with_thoughts), (2**31 - 1, with_thoughts), (2**31, False), (-1, False)):
        assert here.allows("ChatRequest", CHAT | {name: value}) is is_taken, value
        assert (here.refusal("ChatRequest", CHAT | {name: value}) is None) is is_taken, value


@given(messages, st.fixed_dictionaries({}, optional=of_tools), st.sampled_from([None, "hermes"]))
def test_chats_with_tools(said: Any, tooled: dict[str, Any], tool_format: str | None) -> None:
    here = world(tool_format=tool_format)
    for body in (CHAT | tooled, {"messages": said} | tooled):
        assert here.disagreement("ChatRequest", body) is None


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("body", "without_format", "with_format"),
    [
        ({"tools": [TOOL]}, False, True),
        ({"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False}, False, True),
        ({"tools": [TOOL], "tool_choice": "none"}, True, True),
        ({"tools": [TOOL], "tool_choice": "required"}, False, True),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, False, True),
        ({"tools": [{**TOOL, "function": {"name": "f", "strict": True}}]}, False, True),
        ({"tools": [{**TOOL, "function": {"name": "f", "strict": True}}], "tool_choice": "none"}, True, True),
        ({"tools": [], "tool_choice": "required"}, False, False),
        ({"tools": [{}], "tool_choice": "none"}, False, False),
        ({"tools": [{**TOOL, "function": {"name": "a b"}}]}, False, False),
        ({"tools": [], "tool_choice": "auto"}, True, True),
    ],
)
def test_when_tools_are_taken(body: dict[str, Any], without_format: bool, with_format: bool) -> None:
    for tool_format, is_taken in ((None, without_format), ("hermes", with_format)):
        here = world(tool_format=tool_format)
        assert here.allows("ChatRequest", CHAT | body) is is_taken, tool_format
        assert (here.refusal("ChatRequest", CHAT | body) is None) is is_taken, tool_format


sampling: dict[str, st.SearchStrategy[Any]] = {
    **{name: fields[name] for name in "n temperature top_p top_k min_p stop stop_token_ids ignore_eos".split()},
    **dict.fromkeys("max_new_tokens min_new_tokens sampling_seed stream_interval".split(), numbers),
    **dict.fromkeys("max_tokens min_tokens seed".split(), numbers),
    **dict.fromkeys(OF_SAMPLING, flags | reals | texts),
}
of_native: dict[str, st.SearchStrategy[Any]] = {
    **{name: fields[name] for name in "model cache_salt priority timeline stream add_special_tokens".split()},
    "text": texts,
    "input_ids": prompts,
    "rid": texts | some(["a", "a"], "x___decode_addr_b", ["x___prefill_addr_b"]),
    "return_logprob": flags | some([True], [False, True]),
    "top_logprobs_num": numbers | some([1], [21]),
    "logprob_start_len": numbers | some([-1], [0]),
    **dict.fromkeys(OF_BODY, flags | reals | texts | numbers),
}


@st.composite
def native_bodies(draw: st.DrawFn) -> Any:
    """Bodies with a few of the fields, and a few of the sampling fields."""
    names = draw(st.lists(st.sampled_from(sorted(of_native)), max_size=2, unique=True))
    params = draw(st.lists(st.sampled_from(sorted(sampling)), max_size=2, unique=True))
    of_params = {name: draw(sampling[name]) for name in params}
    fine: dict[str, Any] = draw(st.sampled_from([{"text": "a"}, {"input_ids": [1]}, {"input_ids": [[1], [2]]}, {}]))
    shapes: list[Any] = [of_params, [of_params], [{}, of_params], None, 5, [5]]
    return fine | {"sampling_params": draw(st.sampled_from(shapes))} | {name: draw(of_native[name]) for name in names}


@given(native_bodies(), st.booleans(), st.booleans())
def test_native(body: Any, has_tokenizer: bool, add_bos: bool) -> None:
    assert world(has_tokenizer, add_bos).disagreement("GenerateRequest", body) is None


def test_no_limit_is_known_yet() -> None:
    without = World(limits=Limits())
    for body in ({"prompt": [10**6]}, {"prompt": "a", "max_tokens": 10**6, "n": 9}):
        assert without.allows("CompletionRequest", body) and without.refusal("CompletionRequest", body) is None
    for body in ({"prompt": "a", "n": 10}, {"prompt": "a", "min_tokens": 17}, {"prompt": [2**31]}):
        assert not without.allows("CompletionRequest", body) and without.refusal("CompletionRequest", body)


@pytest.mark.parametrize(
    ("name", "body", "is_allowed"),
    [
        ("ChatRequest", {"messages": [{"role": "tool", "content": ""}]}, True),
        ("ChatRequest", CHAT | {"chat_template": "broken"}, False),
        ("ChatRequest", CHAT | {"min_tokens": 20}, True),
        ("CompletionRequest", {"prompt": [1] * 48}, True),
        ("CompletionRequest", {"prompt": [1] * 49}, False),
        ("CompletionRequest", PROMPT | {"stop": ["a", "b", "c"]}, False),
        ("CompletionRequest", PROMPT | {"n": 9}, False),
        ("CompletionRequest", PROMPT | {"stream_options": {}, "stream": True}, True),
        ("CompletionRequest", PROMPT | {"max_tokens": 64}, False),
        ("CompletionRequest", PROMPT | {"max_tokens": 64, "max_completion_tokens": 4}, True),
        ("CompletionRequest", PROMPT | {"min_tokens": 17}, False),
        ("CompletionRequest", PROMPT | {"min_tokens": 17, "max_tokens": 20}, True),
        ("CompletionRequest", PROMPT | {"top_logprobs": 1}, False),
        ("GenerateRequest", {"text": "a", "input_ids": None}, True),
        ("GenerateRequest", {"text": "a", "sampling_params": {"max_new_tokens": 64}}, False),
        ("GenerateRequest", {"text": "a", "sampling_params": {"n": 9}}, False),
    ],
)
def test_rules_beside_those_of_kept_answers(name: str, body: Any, is_allowed: bool) -> None:
    assert world().allows(name, body) is is_allowed
    assert (world().refusal(name, body) is None) is is_allowed


def test_an_empty_text_is_a_prompt_if_the_tokenizer_adds_bos() -> None:
    with_bos = world(True, True)
    assert with_bos.translator.token_ids(Ask([PromptText("")]), LIMITS) == [[BOS]]
    assert with_bos.allows("CompletionRequest", {"prompt": ""})
    assert "is empty" in str(with_bos.refusal("CompletionRequest", {"prompt": "", "add_special_tokens": False}))


IDS: dict[str, Any] = {"prompt": [1, 2]}


@pytest.mark.parametrize(
    ("name", "fine", "has_tokenizer"),
    [
        ("CompletionRequest", PROMPT, True),
        ("CompletionRequest", IDS, False),
        ("ChatRequest", CHAT, True),
        ("GenerateRequest", {"text": "a"}, True),
        ("GenerateRequest", {"input_ids": [1, 2]}, False),
    ],
)
def test_every_example_of_a_field_is_served(name: str, fine: dict[str, Any], has_tokenizer: bool) -> None:
    here = world(has_tokenizer)
    for field, schema in here.schemas[name]["properties"].items():
        for example in schema["examples"]:
            body = ({} if (name, field) == ("GenerateRequest", "input_ids") else fine) | {field: example}
            if field == "stream_options":
                body["stream"] = True
            assert here.allows(name, body) and here.refusal(name, body) is None, body


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_every_field_has_a_description_and_an_example_that_fits(has_tokenizer: bool) -> None:
    here = world(has_tokenizer)
    for name, schema in here.schemas.items():
        assert schema["description"], name
        for field, told in schema["properties"].items():
            assert told.get("description") and told.get("examples"), (name, field)
            for example in told["examples"]:
                assert Draft202012Validator({**told, **here.document}).is_valid(example), (name, field)


def test_an_example_is_made_of_those_of_the_parts() -> None:
    schemas = world().schemas
    cached = {"cached_tokens": 0}
    usage = {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12, "prompt_tokens_details": cached}
    assert schemas["Completion"]["properties"]["usage"]["examples"] == [usage]
    choice = {"index": 0, "finish_reason": "stop", "text": ", there was a fox.", "logprobs": None}
    assert schemas["Completion"]["properties"]["choices"]["examples"] == [[choice]]
    assert schemas["Completion"]["properties"]["object"]["examples"] == ["text_completion"]


@pytest.mark.parametrize("limits", [LIMITS, Limits()])
def test_every_keyword_that_a_field_tells_is_filled_in(limits: Limits) -> None:
    here = World(limits=limits)
    assert KEYWORDS not in json.dumps(here.document)
    fields = here.schemas["CompletionRequest"]["properties"]
    told = {name: fields[name]["anyOf"][0] for name in ("n", "max_completion_tokens", "stop_token_ids")}
    is_known = limits is LIMITS
    assert told["n"]["maximum"] == (8 if is_known else 9) and "exclusiveMaximum" not in told["n"]
    assert told["max_completion_tokens"].get("maximum") == (48 if is_known else None)
    assert told["stop_token_ids"]["items"]["exclusiveMaximum"] == (262 if is_known else 2**31)
    assert fields["prompt"]["anyOf"][3]["items"]["minItems"] == 1 and fields["model"]["enum"] == [*NAMES.all, None]
