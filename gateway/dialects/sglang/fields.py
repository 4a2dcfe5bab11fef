"""SGLang's native requests: the bodies of POST /generate and POST /abort_request.

A native body may give some fields a value for each prompt.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from gateway.dialects.shared.grammar_fields import SglangGrammars
from gateway.dialects.shared.sampling_fields import (
    INT32,
    MAX_SALT_CHARS,
    Least,
    Positive,
    PromptIds,
    SamplingFields,
    Seed,
    SeveralIds,
    Text,
    Texts,
    shown,
    told,
)
from gateway.words.router_marks import MARKED_ID
from protocol.errors import BadRequest
from protocol.logprobs import NumTop
from protocol.messages_gateway import Priority

DEFAULT_NEW_TOKENS: Final = 128
MAX_RID_CHARS: Final = 256
ONLY_OUTPUTS: Final = -1
INSIDE: Final = "sampling_params."  # before the names of its fields in errors
ANY_JSON: Final = "$$ANY$$"  # SGLang's word for a JSON schema that allows everything
# Fields of `sampling_params` that clients often write as OpenAI's API does, which is refused.
RENAMED: Final = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}

# Fields that may have a value for each prompt.
EACH: Final = "sampling_params rid return_logprob top_logprobs_num logprob_start_len cache_salt".split()

Rid = Annotated[
    str, Field(min_length=1, max_length=MAX_RID_CHARS, json_schema_extra={"not": {"pattern": MARKED_ID}})
]  # see unsupported.py
NewTokens = Annotated[Least, shown(maximum="most_tokens")]
Start = Annotated[int, Field(ge=ONLY_OUTPUTS, lt=INT32 - 1)]
Salt = Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARS)]


class NativeSampling(SamplingFields, SglangGrammars):
    """`sampling_params` of `POST /generate`: how the tokens of a prompt's choices are drawn."""

    max_new_tokens: Annotated[
        NewTokens | None,
        told(
            f"Tokens of a choice, at most. Absent: {DEFAULT_NEW_TOKENS}. null: all that the context has room for. "
            "0: none, where only the prompt's log-probabilities are wanted.",
            8,
        ),
    ] = None
    min_new_tokens: Annotated[
        NewTokens | None,
        told("Tokens before a choice may end: until then neither EOS nor a stop token is drawn.", 2),
    ] = None
    sampling_seed: Annotated[Seed | None, told("The same seed gives the same answer. Absent: a random one.", 1)] = None
    stream_interval: Annotated[
        Positive | None, told("A stream has an event for at least so many new tokens of a choice. Absent: 1.", 1)
    ] = None


class GenerateRequest(BaseModel, strict=True, allow_inf_nan=False):
    """`POST /generate`, as SGLang has it."""

    model: Annotated[str | None, told("One of the names in /v1/models. Absent: the model served.", enum="names")] = None
    text: Annotated[
        Text | Texts | None,
        told(
            "What to continue, or a list of such texts. Either `text` or `input_ids` is there.",
            "Once upon a time",
            enum="only_absent",
        ),
    ] = None
    input_ids: Annotated[
        PromptIds | SeveralIds | None,
        told("What to continue as token ids, or a list of such lists.", [1, 2, 3]),
    ] = None
    sampling_params: Annotated[
        NativeSampling | Annotated[list[NativeSampling], Field(min_length=1, fail_fast=True)] | None,
        told("How tokens are drawn: for all prompts, or a list with an object for each.", {"max_new_tokens": 8}),
    ] = None
    stream: Annotated[
        bool | None, told("The answer comes as server-sent events. Each has all text and tokens so far.", True)
    ] = None
    rid: Annotated[
        Rid | Annotated[list[Rid], Field(min_length=1, fail_fast=True)] | None,
        told("The client's name for the request, or one for each prompt. `/abort_request` takes it.", "request-7"),
    ] = None
    return_logprob: Annotated[
        bool | Annotated[list[bool], Field(min_length=1, fail_fast=True)] | None,
        told("Log-probabilities of the answer's tokens. Also a list with a value for each prompt.", True),
    ] = None
    top_logprobs_num: Annotated[
        NumTop | Annotated[list[NumTop], Field(min_length=1, fail_fast=True)] | None,
        told("With `return_logprob`: those of so many of the likeliest tokens, too. Also a list.", 5),
    ] = None
    logprob_start_len: Annotated[
        Start | Annotated[list[Start], Field(min_length=1, fail_fast=True)] | None,
        told(
            "With `return_logprob`: from which token on the prompt has log-probabilities, too. That token itself has "
            "none. -1: only the answer's tokens have some. Also a list with a value for each prompt.",
            -1,
        ),
    ] = None
    return_text_in_logprobs: Annotated[
        bool | None, told("Log-probabilities name the text of their token, too.", True)
    ] = None
    add_special_tokens: Annotated[
        bool | None, told("Whether the tokenizer adds its own, such as BOS, to a text. Absent: true.", False)
    ] = None
    cache_salt: Annotated[
        Salt | Annotated[list[Salt], Field(min_length=1, fail_fast=True)] | None,
        told("KV is shared only with prompts of the same salt. Also a list with a value for each prompt.", "tenant-7"),
    ] = None
    priority: Annotated[
        Priority | None,
        told("A smaller number is served earlier; a level is worth a second of waiting. Absent: 0.", -5),
    ] = None
    timeline: Annotated[
        bool | None,
        told("`meta_info` also says where the time went. Absent: the header x-baton-timeline decides.", True),
    ] = None

    @property
    def prompt_name(self) -> str:
        """The field that has the prompts."""
        return "text" if self.input_ids is None else "input_ids"

    @property
    def is_list(self) -> bool:
        """Whether the client has sent a list of prompts, so that the answer is a list, too."""
        prompt: Any = getattr(self, self.prompt_name)
        return isinstance(prompt, list) and not isinstance(prompt[0], int)

    @property
    def prompts(self) -> list[Any]:
        """Texts or lists of token ids."""
        prompt: Any = getattr(self, self.prompt_name)
        return prompt if self.is_list else [prompt]

    @property
    def intervals(self) -> list[int]:
        """For each prompt, how many new tokens of a choice an event has at least."""
        return [sampling.stream_interval or 1 for sampling in self.of_each("sampling_params", NativeSampling())]

    @property
    def num_top(self) -> list[int | None]:
        """For each prompt, how many of the likeliest tokens log-probabilities have; None: there are none."""
        asked, num_top = self.of_each("return_logprob", False), self.of_each("top_logprobs_num", 0)
        return [top if wanted else None for wanted, top in zip(asked, num_top, strict=True)]

    @property
    def starts(self) -> Sequence[int]:
        """For each prompt, its first token that is told with log-probabilities."""
        return self.of_each("logprob_start_len", ONLY_OUTPUTS)

    def names(self, own: str) -> list[str]:
        """The id of each prompt. `own`: what they begin with if the client gives none. BadRequest if a list of ids
        does not fit."""
        if isinstance(self.rid, list):
            if len(set(self.rid)) < len(self.rid):
                raise BadRequest("rid: got an id twice, expected each once", param="rid")
            return list(self.of_each("rid", None))
        whole = own if self.rid is None else self.rid
        return [f"{whole}_{position}" for position in range(len(self.prompts))] if self.is_list else [whole]

    def of_each(self, name: str, default: Any) -> Sequence[Any]:
        """The value of a field for each prompt. BadRequest if a list does not fit."""
        value, num_prompts = getattr(self, name), len(self.prompts)
        if not isinstance(value, list):
            return [default if value is None else value] * num_prompts
        if len(value) != num_prompts:
            raise BadRequest(f"{name}: has {len(value)} items, expected {num_prompts}, one for each prompt", param=name)
        return value


def check_lengths(body: Mapping[str, Any], max_prompts: int) -> None:
    """BadRequest for a list with more items than a request may have prompts, before each item is read."""
    for name in EACH:
        value = body.get(name)
        if isinstance(value, list) and len(value) > max_prompts:
            raise BadRequest(f"{name}: has {len(value)} items, expected at most {max_prompts}", param=name)


class AbortRequest(BaseModel, strict=True):
    """`POST /abort_request`."""

    rid: Annotated[
        Annotated[str, Field(max_length=MAX_RID_CHARS)] | None,
        told("The `rid` of a request or of one of its prompts, or the `id` of an answer.", "request-7"),
    ] = None
    abort_all: Annotated[bool | None, told("All requests of this gateway end.", False)] = None
