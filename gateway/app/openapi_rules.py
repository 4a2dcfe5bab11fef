"""What /openapi.json says beyond the types of fields: rules between fields, and the bounds of this gateway now.

A field names its bound itself, by `shown` or `told` (sampling_fields.py). Rules between fields are here.

Some rules are not told, because a JSON schema cannot, or because schemathesis cannot work with more rules between
fields than these. So the gateway may refuse a body that fits: prompt and `max_tokens` together beyond the context,
`min_tokens` above `max_tokens`, no token left to draw, an integer written as 1.0, an empty text without special tokens,
a text that the chat template refuses, too many prompts times `n`, a misspelt field, a `logit_bias` of a token beyond
the vocabulary or of one token twice, a bad word without tokens, `top_logprobs` without `logprobs`, `max_tokens: 0`
without `echo`, two tools of one name, too many characters of their schemas, a choice or a result without its tool or
its call, tools or calls that the chat template does not render, arguments that are no object, two texts of reasoning.
Of `POST /generate` also: a list that has not a value for each prompt, an `n` that differs, an id twice, a
`logprob_start_len` beyond the prompt, a sampling field outside of `sampling_params`. And it serves three that do not
fit: `best_of` that is what `n` is, `functions` beside `function_call: "none"`, and a prompt as long as the context
beside `max_tokens: 0`.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, get_args

from gateway.dialects.openai.conversation_fields import NEED_CONTENT, KnownRole
from gateway.dialects.openai.fields import DEFAULT_COMPLETION_TOKENS
from gateway.dialects.openai.tokenize_fields import UNSUPPORTED
from gateway.dialects.openai.unsupported import FORBIDDEN_BY, ID_FIELDS, IN_COMPLETIONS, NEUTRAL
from gateway.dialects.sglang.fields import RENAMED
from gateway.dialects.sglang.unsupported import OF_BODY, OF_SAMPLING
from gateway.dialects.shared.refusals import Table
from gateway.dialects.shared.sampling_fields import KEYWORDS
from gateway.generation.conversations import TOOL_NAME
from gateway.serving.service import Service
from gateway.text.chat_template import RESERVED
from gateway.words.limits import Limits
from gateway.words.router_marks import MARKED_ID
from runtime.settings import HttpLimits

Schema = dict[str, Any]
NOT_SUPPORTED = "Not supported. These values change nothing and are accepted."
NULL: Schema = {"type": "null"}


@dataclass(frozen=True)
class Bounds:
    """The bounds that one gateway checks, with its present workers. Fields name them: see `shown`. None: no bound."""

    names: tuple[str, ...]  # of the model
    templates: tuple[str, ...]  # names of the model's chat templates
    takes_text: bool  # the model has a tokenizer
    takes_empty_text: bool  # the tokenizer makes tokens of it
    takes_tools: bool  # calls can be read from the model's answers
    takes_budgets: bool  # answers can keep a budget of reasoning tokens
    limits: Limits
    http: HttpLimits

    @property
    def longest_prompt(self) -> int | None:
        """The most token ids that a prompt may have. It leaves room for one output."""
        longest, context = self.limits.longest_prompt, self.limits.context_length
        return longest if context is None or longest is None else min(longest, context - 1)

    @property
    def most_tokens(self) -> int | None:
        """The largest `max_tokens` beside a prompt of one token."""
        context, room = self.limits.context_length, self.limits.room(1, 1)
        return min((bound for bound in (context and context - 1, room) if bound is not None), default=None)

    @property
    def most_choices(self) -> int:
        """The largest `n`."""
        of_workers = self.limits.max_choices
        most = min(self.http.max_choices, self.http.max_choices_in_flight)
        return most if of_workers is None else min(most, of_workers)

    @property
    def least_chars(self) -> int | None:
        """The fewest characters of a prompt."""
        return None if self.takes_empty_text else 1

    @property
    def only_empty(self) -> tuple[list[str]] | None:
        """The values of a list of texts: the empty one, if there is no tokenizer."""
        return None if self.takes_text else ([],)

    @property
    def only_absent(self) -> tuple[()] | None:
        """The values of a prompt of text: none, if there is no tokenizer."""
        return None if self.takes_text else ()

    @property
    def budgets(self) -> tuple[()] | None:
        """The values of a budget of reasoning tokens: none, if answers can keep none."""
        return None if self.takes_budgets else ()


def bounds_of(service: Service) -> Bounds:
    """What can be asked of this gateway now."""
    translator = service.translator
    return Bounds(
        names=service.names.all,
        templates=translator.template_names,
        takes_text=translator.takes_text,
        takes_empty_text=translator.takes_empty_text,
        takes_tools=translator.takes_tools,
        takes_budgets=translator.takes_budgets,
        limits=service.control.limits,
        http=service.http_limits,
    )


def add_rules(schemas: dict[str, Schema], bounds: Bounds) -> None:
    """Adds to `schemas`, in place, the bounds and rules that the gateway checks and that a schema can tell."""
    _fill_in(schemas, bounds)
    for name in ("CompletionRequest", "ChatRequest"):
        _add_unsupported(schemas[name], NEUTRAL if name == "ChatRequest" else IN_COMPLETIONS)
        schemas[name].setdefault("allOf", []).extend(_token_rules(bounds))
    schemas["CompletionRequest"]["allOf"] += _default_rules(bounds)

    if not bounds.takes_text:
        prompt = schemas["CompletionRequest"]["properties"]["prompt"]
        prompt |= {"anyOf": prompt["anyOf"][2:], "examples": [[1, 2, 3]]}  # without text and lists of texts
    for name in ("ChatRequest", "TokenizeRequest"):
        _add_conversation_rules(schemas[name], bounds)
    for name in ("FunctionFields", "FunctionCall"):
        schemas[name]["properties"]["name"]["pattern"] = TOOL_NAME
    _add_neutral(schemas["TokenizeRequest"], UNSUPPORTED)
    by_prompt = {**_given("prompt", "string"), "not": _given("messages", "array")}
    by_messages = {**_given("messages", "array"), "not": _given("prompt", "string")}
    schemas["TokenizeRequest"] |= _either(by_prompt, by_messages)

    _add_neutral(schemas["GenerateRequest"], OF_BODY)
    _add_neutral(schemas["NativeSampling"], {**OF_SAMPLING, **dict.fromkeys(RENAMED.values(), ())})
    by_text = {**_given("text", "string", "array"), "not": _given("input_ids", "array")}
    by_ids = {**_given("input_ids", "array"), "not": _given("text", "string", "array")}
    schemas["GenerateRequest"] |= _either(by_text, by_ids)

    has_rid = {"required": ["rid"], "properties": {"rid": {"type": "string", "minLength": 1}}}
    schemas["AbortRequest"] |= _either(
        has_rid, {"required": ["abort_all"], "properties": {"abort_all": {"const": True}}}
    )

    may_lack_content = {"properties": {"role": {"enum": sorted(set(get_args(KnownRole)) - set(NEED_CONTENT))}}}
    no_assistant_fields = {"function_call": NULL, "tool_calls": {"enum": [None, []]}}
    no_assistant_fields |= {name: {"enum": [None, ""]} for name in ("reasoning_content", "reasoning")}
    is_assistant = {"properties": {"role": {"const": "assistant"}}}
    schemas["ChatMessage"]["allOf"] = [
        _either(may_lack_content, _given("content", "string", "array")),
        _either(is_assistant, {"properties": no_assistant_fields}),
    ]


def _fill_in(node: Any, bounds: Bounds) -> None:
    """Fills in what fields say by `shown`, wherever it is within a schema."""
    if isinstance(node, dict):
        for keyword, value in node.pop(KEYWORDS, {}).items():
            _set(node, keyword, attrgetter(value)(bounds) if isinstance(value, str) else value)
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            _fill_in(part, bounds)


def _set(node: Schema, keyword: str, value: Any) -> None:
    """Adds a keyword, if there is such a bound."""
    if value is None:
        return
    if keyword == "enum":  # of a field, which may also be null
        value = [*value, None]
        node["examples"] = value[:1]
    if keyword == "maximum":  # below that of the type
        node.pop("exclusiveMaximum", None)
    node[keyword] = value


def _token_rules(bounds: Bounds) -> list[Schema]:
    """Rules of the number of tokens, and of the fields that need another one."""
    is_streamed = {"required": ["stream"], "properties": {"stream": {"const": True}, "prompt_logprobs": NULL}}
    rules = [_either(is_streamed, {"properties": {"stream": {"enum": [False, None]}, "stream_options": NULL}})]

    if bounds.most_tokens is not None:
        rules.append(_either(_is_asked(), _at_most("max_tokens", bounds.most_tokens)))
    return rules


def _is_asked() -> Schema:
    """Matches if the newer field says the number of tokens."""
    return _given("max_completion_tokens", "integer")


def _default_rules(bounds: Bounds) -> list[Schema]:
    """Rules of the number of tokens that a completion has if its request names none."""
    default = min(bounds.most_tokens or DEFAULT_COMPLETION_TOKENS, DEFAULT_COMPLETION_TOKENS)
    return [_either(_is_asked(), _given("max_tokens", "integer"), _at_most("min_tokens", default))]


def _add_conversation_rules(schema: Schema, bounds: Bounds) -> None:
    """Which variables the chat template may get; when a chat may have tools, and must have some."""
    variables = schema["properties"]["chat_template_kwargs"]["anyOf"][0]
    variables["propertyNames"] = {"not": {"enum": sorted(RESERVED)}}
    rules = schema.setdefault("allOf", [])
    some_tools = {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}}
    free = {"properties": {"tool_choice": {"enum": [None, "none", "auto"]}}}
    rules.append(_either(free, some_tools))
    if not bounds.takes_tools:
        rules.append(_either(_is_forbidden("tools"), {"properties": {"tools": {"maxItems": 0}}}))


def _is_forbidden(name: str) -> Schema:
    """Matches if the request itself forbids that these tools are used."""
    by = FORBIDDEN_BY[name]
    return {"required": [by], "properties": {by: {"const": "none"}}}


def _add_unsupported(schema: Schema, table: Table) -> None:
    """The fields that unsupported.py refuses, with the values that it lets pass."""
    fields, rules = schema["properties"], schema.setdefault("allOf", [])
    _add_neutral(schema, {**table, "best_of": (1,)})

    if "tools" in table:
        by, neutral_tools = FORBIDDEN_BY["tools"], fields["tools"].pop("enum")
        rules.append(_either(_is_forbidden("tools"), {"properties": {"tools": {"enum": neutral_tools}}}))
        fields["tools"] |= {"description": f'{NOT_SUPPORTED} Any value is, beside `{by}: "none"`.', "examples": [[]]}

    for name in ID_FIELDS:
        fields[name] = {
            "description": "Not used. Refused if it has the marks of a router for prefill and decode servers.",
            "not": {"type": "string", "pattern": MARKED_ID},
            "examples": ["request-7"],
        }


def _add_neutral(schema: Schema, table: Table) -> None:
    """Fields that are not supported, with the values that change nothing."""
    for name, values in table.items():
        enum = [None, *values]
        schema["properties"][name] = {"description": NOT_SUPPORTED, "enum": enum, "examples": enum[:2][-1:]}


def _given(name: str, *types: str) -> Schema:
    """Matches if the field is there and not null; `types`: those that it may have."""
    return {"required": [name], "properties": {name: {"type": list(types)}}}


def _at_most(name: str, most: int) -> Schema:
    """Matches if the field is at most so large, null or absent."""
    return {"properties": {name: {"maximum": most}}}


def _either(*schemas: Schema) -> Schema:
    """The rule that one of these matches. Many tools do not understand if, then and else."""
    return {"anyOf": list(schemas)}
