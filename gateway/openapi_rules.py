"""What /openapi.json says beyond the types of fields: rules between fields, and the bounds of this gateway now.

Some rules are not told, because a JSON schema cannot, or because schemathesis cannot work with more rules between
fields than these. So the gateway may refuse a body that fits: prompt and `max_tokens` together beyond the context,
`min_tokens` above `max_tokens`, no token left to draw, an integer written as 1.0, an empty text without special tokens,
a text that the chat template refuses, too many prompts times `n`, a misspelt field, a `logit_bias` of a token beyond
the vocabulary or of one token twice, a bad word without tokens, `top_logprobs` without `logprobs`, `max_tokens: 0`
without `echo`. Of `POST /generate` also: a list that has not a value
for each prompt, an `n` that differs, an id twice, a `logprob_start_len` beyond the prompt, a sampling field outside of
`sampling_params`. And it serves three that do not fit: `best_of` that is what `n` is, `functions` beside
`function_call: "none"`, and a prompt as long as the context beside `max_tokens: 0`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from gateway.chat_template import RESERVED
from gateway.limits import Limits
from gateway.native_schemas import RENAMED
from gateway.native_unsupported import OF_BODY, OF_SAMPLING
from gateway.sampling_fields import INT32
from gateway.schemas import DEFAULT_COMPLETION_TOKENS, NEED_CONTENT, KnownRole
from gateway.unsupported import FORBIDDEN_BY, ID_FIELDS, MARKED_ID, NEUTRAL, Table
from runtime.settings import HttpLimits

Schema = dict[str, Any]
NOT_SUPPORTED = "Not supported. These values change nothing and are accepted."
NULL: Schema = {"type": "null"}


@dataclass(frozen=True)
class Bounds:
    """The bounds that one gateway checks, with its present workers."""

    names: tuple[str, ...]  # of the model
    templates: tuple[str, ...]  # names of the model's chat templates
    takes_text: bool  # the model has a tokenizer
    takes_empty_text: bool  # the tokenizer makes tokens of it
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
        return min((each for each in (context and context - 1, room) if each is not None), default=None)

    @property
    def most_choices(self) -> int:
        """The largest `n`."""
        of_workers = self.limits.max_choices
        most = min(self.http.max_choices, self.http.max_choices_in_flight)
        return most if of_workers is None else min(most, of_workers)


def add_rules(schemas: dict[str, Schema], bounds: Bounds) -> None:
    """Makes the schemas of requests as strict as the gateway is."""
    for name in ("CompletionRequest", "ChatRequest"):
        _bound_fields(schemas[name]["properties"], bounds)
        _add_unsupported(schemas[name])
        _add_token_rules(schemas[name], bounds, is_chat=name == "ChatRequest")

    _bound_prompt(schemas["CompletionRequest"], bounds)
    _bound_template(schemas["ChatRequest"]["properties"], bounds)

    native, sampling = schemas["GenerateRequest"]["properties"], schemas["NativeSampling"]["properties"]
    _add_neutral(native, OF_BODY)
    _add_neutral(sampling, {**OF_SAMPLING, **dict.fromkeys(RENAMED.values(), ())})
    _bound_native(schemas["GenerateRequest"], sampling, bounds)

    one = {"required": ["rid"], "properties": {"rid": {"type": "string", "minLength": 1}}}
    schemas["AbortRequest"] |= _either(one, {"required": ["abort_all"], "properties": {"abort_all": {"const": True}}})

    silent = {"properties": {"role": {"enum": sorted(set(get_args(KnownRole)) - set(NEED_CONTENT))}}}
    schemas["ChatMessage"] |= _either(silent, _given("content", "string", "array"))


def _bound_fields(fields: dict[str, Schema], bounds: Bounds) -> None:
    """The bounds of single fields."""
    fields["model"] |= _one_of(bounds.names)
    _bound_sampling(fields, bounds)
    if not bounds.takes_text:
        fields["bad_words"]["enum"] = [None, []]
    _alternative(fields["allowed_token_ids"], "array")["minItems"] = 1
    for name in ("allowed_token_ids", "prompt"):
        _bound_ids(fields.get(name), bounds)


def _bound_sampling(fields: dict[str, Schema], bounds: Bounds) -> None:
    """The bounds of fields that all APIs share."""
    _limit(fields["n"], bounds.most_choices)
    if bounds.takes_text:
        _alternative(fields["stop"], "array")["maxItems"] = bounds.http.max_stop_strings
    else:
        fields["stop"]["enum"] = [None, []]
    _alternative(fields["logit_bias"], "object")["propertyNames"] = {"pattern": "^[0-9]{1,10}$"}
    _bound_ids(fields["stop_token_ids"], bounds)


def _bound_native(schema: Schema, sampling: dict[str, Schema], bounds: Bounds) -> None:
    """The fields of `POST /generate`. A prompt has one of two fields."""
    fields = schema["properties"]
    fields["model"] |= _one_of(bounds.names)
    _bound_sampling(sampling, bounds)
    if bounds.most_tokens is not None:
        for name in ("max_new_tokens", "min_new_tokens"):
            _limit(sampling[name], bounds.most_tokens)

    text, texts, _ = fields["text"]["anyOf"]
    ids, lists, _ = fields["input_ids"]["anyOf"]
    _bound_prompts(text, texts, ids, lists, bounds)
    _bound_ids(fields["input_ids"], bounds)
    if not bounds.takes_text:
        fields["text"] = {"description": fields["text"]["description"], "enum": [None], "examples": [None]}
    by_text = {**_given("text", "string", "array"), "not": _given("input_ids", "array")}
    by_ids = {**_given("input_ids", "array"), "not": _given("text", "string", "array")}
    schema |= _either(by_text, by_ids)


def _bound_prompt(schema: Schema, bounds: Bounds) -> None:
    """The prompts of completions."""
    prompt = schema["properties"]["prompt"]
    text, texts, ids, lists = prompt["anyOf"]
    _bound_prompts(text, texts, ids, lists, bounds)
    if not bounds.takes_text:
        prompt |= {"anyOf": [ids, lists], "examples": [[1, 2, 3]]}


def _bound_prompts(text: Schema, texts: Schema, ids: Schema, lists: Schema, bounds: Bounds) -> None:
    """A prompt has a token at least, and fits the context. There are not too many prompts."""
    for several in (texts, lists):
        several["maxItems"] = bounds.http.max_prompts

    lists["items"]["minItems"] = 1
    if bounds.longest_prompt is not None:
        ids["maxItems"] = lists["items"]["maxItems"] = bounds.longest_prompt
    if not bounds.takes_empty_text:
        text["minLength"] = texts["items"]["minLength"] = 1


def _bound_template(fields: dict[str, Schema], bounds: Bounds) -> None:
    names = [*bounds.templates, None]
    fields["chat_template"] |= {"enum": names, "examples": names[:1]}
    _alternative(fields["chat_template_kwargs"], "object")["propertyNames"] = {"not": {"enum": sorted(RESERVED)}}


def _add_token_rules(schema: Schema, bounds: Bounds, is_chat: bool) -> None:
    """Rules of the numbers of tokens, and of the fields that need another one."""
    fields, rules = schema["properties"], schema.setdefault("allOf", [])
    is_streamed = {"required": ["stream"], "properties": {"stream": {"const": True}, "prompt_logprobs": NULL}}
    rules.append(_either(is_streamed, {"properties": {"stream": {"enum": [False, None]}, "stream_options": NULL}}))

    most, is_asked = bounds.most_tokens, _given("max_completion_tokens", "integer")
    if most is not None:
        for name in ("max_completion_tokens", "min_tokens"):
            _limit(fields[name], most)
        rules.append(_either(is_asked, _at_most("max_tokens", most)))
    if not is_chat:
        default = min(most or DEFAULT_COMPLETION_TOKENS, DEFAULT_COMPLETION_TOKENS)
        rules.append(_either(is_asked, _given("max_tokens", "integer"), _at_most("min_tokens", default)))


def _add_unsupported(schema: Schema) -> None:
    """The fields that unsupported.py refuses, with the values that it lets pass."""
    fields, rules = schema["properties"], schema.setdefault("allOf", [])
    _add_neutral(fields, {**NEUTRAL, "best_of": (1,)})

    by, neutral_tools = FORBIDDEN_BY["tools"], fields["tools"].pop("enum")
    is_forbidden = {"required": [by], "properties": {by: {"const": "none"}}}
    rules.append(_either(is_forbidden, {"properties": {"tools": {"enum": neutral_tools}}}))
    fields["tools"] |= {"description": f'{NOT_SUPPORTED} Any value is, beside `{by}: "none"`.', "examples": [[]]}

    for name in ID_FIELDS:
        fields[name] = {
            "description": "Not used. Refused if it has the marks of a router for prefill and decode servers.",
            "not": {"type": "string", "pattern": MARKED_ID},
            "examples": ["request-7"],
        }


def _add_neutral(fields: dict[str, Schema], table: Table) -> None:
    """Fields that are not supported, with the values that change nothing."""
    for name, values in table.items():
        enum = [None, *values]
        fields[name] = {"description": NOT_SUPPORTED, "enum": enum, "examples": enum[:2][-1:]}


def _one_of(names: Sequence[str]) -> Schema:
    """The names of the model, or none."""
    return {"enum": [*names, None], "examples": [names[0]]}


def _alternative(field: Schema, kind: str) -> Schema:
    """The alternative of a field that has this type."""
    found: Schema = next(each for each in field["anyOf"] if each.get("type") == kind)
    return found


def _limit(field: Schema, most: int) -> None:
    """Bounds a field that may be an integer."""
    integer = _alternative(field, "integer")
    integer.pop("exclusiveMaximum", None)
    integer["maximum"] = most


def _bound_ids(field: Schema | None, bounds: Bounds) -> None:
    """Token ids are below the vocabulary size, if it is known."""
    for node in _token_ids(field):
        if bounds.limits.vocab_size is not None:
            node["exclusiveMaximum"] = bounds.limits.vocab_size


def _token_ids(node: Any) -> Iterator[Schema]:
    """The schemas of single token ids within the schema of a field."""
    if isinstance(node, dict):
        if node.get("exclusiveMaximum") == INT32:
            yield node
        for each in [*node.get("anyOf", ()), node.get("items")]:
            yield from _token_ids(each)


def _given(name: str, *types: str) -> Schema:
    """Matches if the field is there and not null; `types`: those that it may have."""
    return {"required": [name], "properties": {name: {"type": list(types)}}}


def _at_most(name: str, most: int) -> Schema:
    """Matches if the field is at most so large, null or absent."""
    return {"properties": {name: {"maximum": most}}}


def _either(*schemas: Schema) -> Schema:
    """The rule that one of these matches. Many tools do not understand if, then and else."""
    return {"anyOf": list(schemas)}
