"""From the bytes of a body to a checked request: strict JSON, the fields with their types and ranges, refused fields.

JSON: UTF-8, no NaN, no lone surrogates, no key twice in an object, bounded depth, containers and strings. Types are
strict (no bool for an int), unknown fields are ignored, and null means absent. A field that clients know and Baton
does not support is refused, unless its value changes nothing. translate.py checks the model's limits.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

import jiter
from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from protocol.errors import BadRequest
from protocol.messages_gateway import Priority
from runtime.settings import HttpLimits

MAX_DEPTH = 200  # jiter's own limit
MAX_CONTAINERS = 100_000  # "[" and "{" in a body, those inside strings too: each may become a Python object
MAX_STRINGS = 100_000  # pairs of quotes, without escaped ones
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_MESSAGES = 10_000
MAX_SHOWN = 80  # characters of a value that an error shows
NEED_CONTENT = frozenset("user system developer".split())  # the chat template checks messages of other roles
INT64 = 2**63
KnownRole = Literal["system", "developer", "user", "assistant", "tool", "function"]
CONTENT = "a string or a list of text parts"
UNIONS = {"content": CONTENT, "stop": "a string or a list of strings"}
_TWICE = re.compile(r'Detected duplicate key "(.*)" at line (\d+) column (\d+)', re.DOTALL)
PROMPTS = "a string, a list of strings, a list of token ids, or a list of such lists, none of them empty"

# What is wrong with a value, by the kind of pydantic's error. `got` is the value, `size` its length, `msg` pydantic's
# own text; the other fields in braces are pydantic's limits.
COMPLAINTS = {
    "missing": "is missing",
    "no_content": f"is missing, expected {CONTENT}",
    "string_too_short": "is empty, expected at least one character",
    "too_short": "is empty, expected at least one message",
    "string_too_long": "has {size} characters, expected at most {max_length}",
    "too_long": "has {size} items, expected at most {max_length}",
    "greater_than_equal": "got {got}, expected at least {ge}",
    "greater_than": "got {got}, expected more than {gt}",
    "less_than_equal": "got {got}, expected at most {le}",
    "less_than": "got {got}, expected less than {lt}",
    "finite_number": "got {got}, expected a finite number",
    "int_type": "got {got}, expected an integer",
    "float_type": "got {got}, expected a number",
    "bool_type": "got {got}, expected true or false",
    "string_type": "got {got}, expected a string",
    "list_type": "got {got}, expected an array",
    "dict_type": "got {got}, expected an object",
    "model_type": "got {got}, expected an object",
    "literal_error": "got {got}, expected {expected}",
}
ANY_OTHER = "got {got}: {msg}"

MAX_SALT_CHARS = 256
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _let_others_run(ids: list[int]) -> list[int]:
    """Returns `ids`. This call into Python lets other threads run between two lists."""
    return ids


# One error is enough: a long list could have millions.
Ids = Annotated[list[TokenId], Field(fail_fast=True), AfterValidator(_let_others_run)]


class StreamOptions(BaseModel, strict=True):
    """How a stream reports usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(BaseModel, strict=True, allow_inf_nan=False):
    """Fields that completions and chat share."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None  # -1 and 0 are off
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True)] | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    timeline: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    priority: Priority | None = None
    user: str | None = None
    add_special_tokens: bool | None = None  # None: yes for a prompt, no for a chat, whose template adds them

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return self.n or 1

    @property
    def num_prompts(self) -> int:
        """Prompts in this request."""
        return 1


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, fail_fast=True)]
        | Annotated[Ids, Field(min_length=1)]
        | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
    )

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """A list of token ids is one prompt. Any other list has one prompt in each item."""
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return cast(Sequence[str | list[int]], [self.prompt] if is_one else self.prompt)

    @property
    def num_prompts(self) -> int:
        """Prompts in this request."""
        return len(self.prompts)


class TextPart(BaseModel, strict=True):
    """A part of a message's content. Only text is supported."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(fail_fast=True)] | None


class ChatMessage(BaseModel, strict=True, extra="allow"):
    """One message. Other fields (`name`, `tool_calls`, ...) are passed to the chat template."""

    role: KnownRole
    content: Annotated[Content, Field(validate_default=True)] = None

    @field_validator("content")
    @classmethod
    def _has_content(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and info.data.get("role") in NEED_CONTENT:
            raise PydanticCustomError("no_content", "is missing")
        return content

    def for_template(self) -> dict[str, Any]:
        """The message with its parts joined into one text."""
        content = "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content
        return {"role": self.role, **(self.model_extra or {}), "content": content}


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    chat_template: str | None = None  # the name of one of the model's templates
    chat_template_kwargs: dict[str, Any] | None = None


AnyRequest = CompletionRequest | ChatRequest
R = TypeVar("R", bound=GenerationRequest)


def parse_json(raw: bytes) -> Any:
    """The parsed body. BadRequest names the fault and its place. 1e999 parses as infinity; the field refuses it."""
    containers = raw.count(b"[") + raw.count(b"{")
    if containers > MAX_CONTAINERS:
        raise BadRequest(f"the body has {containers} opening brackets, expected at most {MAX_CONTAINERS}")

    strings = (raw.count(b'"') - raw.count(b'\\"')) // 2
    if strings > MAX_STRINGS:
        raise BadRequest(f"the body has {strings} strings, expected at most {MAX_STRINGS}")

    try:
        return jiter.from_json(raw, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _bad_json(str(error)) from error


def _bad_json(message: str) -> BadRequest:
    twice = _TWICE.match(message)
    if twice is not None:
        key = twice[1] if len(twice[1]) <= 80 else twice[1][:77] + "..."
        return BadRequest(
            f"{key}: appears twice in one object, at line {twice[2]} column {twice[3]}, expected once", param=key
        )
    if message.startswith("recursion limit exceeded"):
        return BadRequest(f"the body is nested deeper than {MAX_DEPTH} levels")
    return BadRequest(f"the body is not valid JSON: {message[:200]}")


def parse(kind: type[R], body: Any) -> R:
    """The request in a JSON body. BadRequest names the field, its value and what was expected."""
    if not isinstance(body, dict):
        raise BadRequest(f"the body is {_type_name(body)}, expected a JSON object")
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        raise _bad_request(error) from error
    if request.stream_options is not None and not request.stream:
        raise BadRequest(
            f"stream_options: got {short(body['stream_options'])} without stream, expected it only beside stream: true",
            param="stream_options",
        )
    return request


def check_counts(request: GenerationRequest, limits: HttpLimits) -> None:
    """BadRequest if one request has too many choices, prompts or stop strings."""
    num_stops = len(request.stop) if isinstance(request.stop, list) else 0
    for name, what, found, most in (
        ("n", "choices", request.num_choices, limits.max_choices),
        ("prompt", "prompts", request.num_prompts, limits.max_prompts),
        ("stop", "strings", num_stops, limits.max_stop_strings),
    ):
        if found > most:
            raise BadRequest(f"{name}: got {found} {what}, expected at most {most}", param=name)

    if request.num_choices * request.num_prompts > limits.max_choices_in_flight:
        raise BadRequest(
            f"n: got {request.num_choices} for each of {request.num_prompts} prompts, "
            f"expected at most {limits.max_choices_in_flight} in all",
            param="n",
        )


def short(value: Any) -> str:
    """A value as an error shows it: text in single quotes, anything else as JSON. Reads no more of the value than is
    shown."""
    if isinstance(value, str):
        text = repr(value[: MAX_SHOWN + 1])
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."

    shown = ""
    for piece in _written(value):
        shown += piece
        if len(shown) > MAX_SHOWN:
            return shown[: MAX_SHOWN - 3] + "..."
    return shown


def _written(value: Any) -> Iterator[str]:
    """The value as JSON, piece by piece."""
    if isinstance(value, str):
        cut = value[: MAX_SHOWN + 1]
        yield json.dumps(cut, ensure_ascii=not cut.isprintable())
    elif isinstance(value, list | dict):
        begin, end = "{}" if isinstance(value, dict) else "[]"
        yield begin
        for place, each in enumerate(value):
            yield ", " if place else ""
            yield from _written(each)
            if isinstance(value, dict):
                yield ": "
                yield from _written(value[each])
        yield end
    else:
        yield json.dumps(value)


def _bad_request(error: ValidationError) -> BadRequest:
    """The error that is likely closest to what the client meant: in a union, of the member that matched furthest."""
    first = max(error.errors(include_url=False), key=_progress)
    top = str(first["loc"][0])
    path = ".".join(str(part) for part in first["loc"] if not _is_variant(part))

    if top == "prompt":
        what = "is missing" if first["type"] == "missing" else f"got {short(first['input'])}"
        return BadRequest(f"prompt: {what}, expected {PROMPTS}", param=top)
    return BadRequest(f"{path}: {_complaint(first, path)}", param=top)


def _progress(error: ErrorDetails) -> tuple[int, bool]:
    """(how deep the checks of a value got, whether its type was right)."""
    return sum(isinstance(part, int) for part in error["loc"]), not error["type"].endswith("_type")


def _complaint(error: ErrorDetails, path: str) -> str:
    """What is wrong with one value and what was expected."""
    kind, value, field = error["type"], error["input"], path.rpartition(".")[2]
    if kind.endswith("_type") and field in UNIONS:
        return f"got {short(value)}, expected {UNIONS[field]}"

    size = len(value) if isinstance(value, str | list) else 0
    complaint = COMPLAINTS.get(kind, ANY_OTHER)
    return complaint.format(got=short(value), size=size, msg=error["msg"], **error.get("ctx", {}))


def _is_variant(part: int | str) -> bool:
    """Whether a part of an error's path names a member of a union: "list[constrained-str]", "str", "TextPart"."""
    return isinstance(part, str) and (not part.islower() or not part.isidentifier() or part in ("str", "int"))


def _type_name(value: Any) -> str:
    return {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}.get(type(value), "a number")


# ---- fields that are not supported ----

ON, OFF, ZERO, ONE = (True,), (False,), (0,), (1,)
EMPTY: tuple[Any, ...] = ({}, [], "")


def _each(names: str, neutral: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names.split(), neutral)


# The values, besides null, that change nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **_each("logprobs prompt_logprobs return_logprob return_hidden_states echo", OFF),
    **_each("return_routed_experts return_prompt_text return_cached_tokens_details", OFF),
    **_each("use_beam_search include_stop_str_in_output no_stop_trim truncate_prompt_tokens", OFF),
    **_each("add_generation_prompt include_reasoning spaces_between_special_tokens", ON),
    "continue_final_message": OFF,
    **_each("top_logprobs frequency_penalty presence_penalty min_new_tokens", ZERO),
    **_each("repetition_penalty length_penalty typical_p", ONE),
    **_each("suffix logit_bias logits_processors custom_logit_processor bad_words allowed_token_ids", EMPTY),
    **_each("structured_outputs guided_json guided_regex guided_choice guided_grammar guided_decoding_backend", EMPTY),
    **_each("json_schema regex ebnf structural_tag stop_regex repetition_detection", EMPTY),
    **_each("input_ids input_embeds prompt_embeds documents audio web_search_options prediction lora_path", EMPTY),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    **_each("tools functions", EMPTY),
    **_each("tool_choice function_call", ("none", "auto")),  # auto without tools means none
    # Ignoring one would end the answer at another token, or let the model think longer than asked.
    **_each("max_new_tokens thinking_token_budget reasoning_effort", ()),
    # They hold other fields, which would be ignored with them. `extra_body` is an argument of SDKs, not a field.
    **_each("extra_body sampling_params vllm_xargs", EMPTY),
    # A session continues another request's context. An extra key keeps caches apart, like `cache_salt`.
    **_each("session_params extra_key", EMPTY),
    # A router for prefill and decode servers sends these, with the same request to two gateways: both would compute it.
    **_each("bootstrap_host bootstrap_port bootstrap_room kv_transfer_params ec_transfer_params", EMPTY),
}
# A list of tools changes nothing if the same request forbids their use.
FORBIDDEN_BY = {"tools": "tool_choice", "functions": "function_call"}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """BadRequest for the first field that is not supported and would change the answer."""
    for name, neutral in NEUTRAL.items():
        is_forbidden = name in FORBIDDEN_BY and body.get(FORBIDDEN_BY[name]) == "none"
        if not is_forbidden:
            _refuse_unless(body, name, neutral)
    _refuse_unless(body, "best_of", (1, body.get("n") or 1))


def _refuse_unless(body: Mapping[str, Any], name: str, neutral: tuple[Any, ...]) -> None:
    value = body.get(name)
    if value is not None and not any(_same(value, each) for each in neutral):
        raise BadRequest(f"{name}: got {short(value)}, which is not supported", param=name)


def _same(value: Any, neutral: Any) -> bool:
    """Whether two values are equal. 1 equals 1.0, but not `true`."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
