"""SGLang's native requests: the body of POST /generate, and what it asks for in the words of OpenAI's API.

A native body may give some fields a value for each prompt. Then each prompt becomes a request of its own.
"""

from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from gateway.schemas import MAX_SALT_CHARS, CompletionRequest, Ids, told, validated
from protocol.errors import BadRequest
from protocol.logprobs import NumTop
from protocol.messages_gateway import Priority

DEFAULT_NEW_TOKENS: Final = 128
MAX_RID_CHARS: Final = 256
ONLY_OUTPUTS: Final = -1
# Fields of `sampling_params` that have another name in OpenAI's API.
RENAMED: Final = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
SAME: Final = (
    *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", "n", "skip_special_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"),
)
OPENAI_NAMES: Final = {**RENAMED, **{name: name for name in SAME}}


class _Strict(BaseModel, strict=True, allow_inf_nan=False):
    """How tokens are drawn and when a choice ends. The names are SGLang's."""


def _sampling_fields() -> dict[str, Any]:
    """The fields of `sampling_params`: those of OpenAI's API, with their bounds and descriptions."""
    found: dict[str, tuple[Any, FieldInfo]] = {}
    for name, openai_name in OPENAI_NAMES.items():
        info = copy(CompletionRequest.model_fields[openai_name])
        if name == "max_new_tokens":
            info.description = f"Tokens of a choice, at most. Absent: {DEFAULT_NEW_TOKENS}, or as many as fit."
        if name == "min_new_tokens":
            info.description = (info.description or "").replace("max_tokens", "max_new_tokens")
        found[name] = (info.annotation, info)
    return found


NativeSampling = create_model("NativeSampling", __base__=_Strict, **_sampling_fields())


class NativePrompt(CompletionRequest):
    """One prompt of a native request, or several that share all fields."""

    source: str = "input_ids"

    @property
    def prompt_name(self) -> str:
        """See CompletionRequest."""
        return self.source

    @property
    def default_tokens(self) -> int | None:
        """See GenerationRequest."""
        return DEFAULT_NEW_TOKENS


class GenerateRequest(BaseModel, strict=True, allow_inf_nan=False):
    """`POST /generate`."""

    text: Annotated[
        str | Annotated[list[str], Field(min_length=1, fail_fast=True)] | None,
        told("What to continue, or a list of such texts. Either `text` or `input_ids` is there.", "Once upon a time"),
    ] = None
    input_ids: Annotated[
        Annotated[Ids, Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1, fail_fast=True)] | None,
        told("What to continue as token ids, or a list of such lists.", [1, 2, 3]),
    ] = None
    sampling_params: Annotated[
        dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None,
        told("How tokens are drawn: for all prompts, or a list with an object for each.", {"max_new_tokens": 8}),
    ] = None
    stream: Annotated[
        bool | None, told("The answer comes as server-sent events. Each has all text and tokens so far.", True)
    ] = None
    rid: Annotated[
        Annotated[str, Field(min_length=1, max_length=MAX_RID_CHARS)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_RID_CHARS)]], Field(min_length=1, fail_fast=True)
        ]
        | None,
        told("The client's name for the request, or one for each prompt. `/abort_request` takes it.", "request-7"),
    ] = None
    return_logprob: Annotated[
        bool | Annotated[list[bool], Field(fail_fast=True)] | None,
        told("Log-probabilities of the answer's tokens. Also a list with a value for each prompt.", True),
    ] = None
    top_logprobs_num: Annotated[
        NumTop | Annotated[list[NumTop], Field(fail_fast=True)] | None,
        told("With `return_logprob`: those of so many of the likeliest tokens, too. Also a list.", 5),
    ] = None
    logprob_start_len: Annotated[
        int | Annotated[list[int], Field(fail_fast=True)] | None,
        told("With `return_logprob`: -1, which means that only the answer's tokens have log-probabilities.", -1),
    ] = None
    return_text_in_logprobs: Annotated[
        bool | None, told("Log-probabilities name the text of their token, too.", True)
    ] = None
    cache_salt: Annotated[
        Annotated[str, Field(max_length=MAX_SALT_CHARS)] | None,
        told("Only requests with the same salt share cached prefixes.", "tenant-7"),
    ] = None
    priority: Annotated[Priority | None, told("Smaller numbers come first. Absent: 0.", 5)] = None

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

    def names(self) -> list[str]:
        """The client's id of each prompt; none if it has given none. BadRequest if a list of ids does not fit."""
        if isinstance(self.rid, list):
            if len(set(self.rid)) < len(self.rid):
                raise BadRequest("rid: got an id twice, expected each once", param="rid")
            return list(self._of_each("rid", self.rid, len(self.prompts)))
        if self.rid is None:
            return []
        return [f"{self.rid}_{place}" for place in range(len(self.prompts))] if self.is_list else [self.rid]

    def requests(self) -> list[CompletionRequest]:
        """What is asked for, as completions. BadRequest for fields that contradict one another."""
        if (self.text is None) == (self.input_ids is None):
            what = "neither is there" if self.text is None else "both are there"
            raise BadRequest(f"text, input_ids: {what}, expected one of them", param=self.prompt_name)

        prompts = self.prompts
        sampling = self._sampling(len(prompts))
        asks = self._of_each("return_logprob", self.return_logprob or False, len(prompts))
        num_top = self._of_each("top_logprobs_num", self.top_logprobs_num or 0, len(prompts))
        starts = self._of_each("logprob_start_len", self._start, len(prompts))
        self._check(sampling, asks, starts)

        shared = (self.sampling_params, self.return_logprob, self.top_logprobs_num)
        if not any(isinstance(value, list) for value in shared):
            return [self._request(prompts, sampling[0], num_top[0] if asks[0] else None)]
        return [
            self._request([prompt], params, top if asked else None)
            for prompt, params, asked, top in zip(prompts, sampling, asks, num_top, strict=True)
        ]

    @property
    def _start(self) -> int | list[int]:
        return ONLY_OUTPUTS if self.logprob_start_len is None else self.logprob_start_len

    def _sampling(self, num_prompts: int) -> Sequence[Any]:
        """The checked `sampling_params` of each prompt."""
        given = self.sampling_params
        try:
            if not isinstance(given, list):
                return [validated(NativeSampling, given or {})] * num_prompts
            return [validated(NativeSampling, each) for each in self._of_each("sampling_params", given, num_prompts)]
        except BadRequest as error:
            if error.param != "sampling_params":
                error.message, error.param = f"sampling_params.{error.message}", f"sampling_params.{error.param}"
            raise

    def _of_each(self, name: str, value: Any, num_prompts: int) -> Sequence[Any]:
        """The value of a field for each prompt."""
        if not isinstance(value, list):
            return [value] * num_prompts
        if len(value) != num_prompts:
            raise BadRequest(f"{name}: has {len(value)} items, expected {num_prompts}, one for each prompt", param=name)
        return value

    def _check(self, sampling: Sequence[Any], asks: Sequence[bool], starts: Sequence[int]) -> None:
        """Refuses what does not fit together."""
        numbers = {params.n or 1 for params in sampling}
        if len(numbers) > 1:
            raise BadRequest(
                f"sampling_params: got n of {min(numbers)} and {max(numbers)}, expected the same for all prompts",
                param="sampling_params",
            )
        for asked, start in zip(asks, starts, strict=True):
            if asked and start != ONLY_OUTPUTS:
                raise BadRequest(f"logprob_start_len: got {start}, expected {ONLY_OUTPUTS}", param="logprob_start_len")

    def _request(self, prompts: list[Any], sampling: BaseModel, num_top: int | None) -> CompletionRequest:
        """All its values are checked already."""
        fields = {OPENAI_NAMES[name]: value for name, value in sampling if value is not None}
        salt, priority = self.cache_salt, self.priority
        return NativePrompt.model_construct(
            source=self.prompt_name,
            prompt=prompts,
            logprobs=num_top,
            cache_salt=salt,
            priority=priority,
            stream=self.stream,
            **fields,
        )


class AbortRequest(BaseModel, strict=True):
    """`POST /abort_request`."""

    rid: Annotated[
        Annotated[str, Field(max_length=MAX_RID_CHARS)] | None,
        told("The `rid` of a request or of one of its prompts, or the `id` of an answer.", "request-7"),
    ] = None
    abort_all: Annotated[bool | None, told("All requests of this gateway end.", False)] = None
