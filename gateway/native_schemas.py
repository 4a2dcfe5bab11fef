"""SGLang's native requests: the body of POST /generate, and what it asks for in the words of OpenAI's API.

A native body may give some fields a value for each prompt. Then each prompt becomes a request of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from gateway.grammar_fields import SglangGrammars
from gateway.sampling_fields import (
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
from gateway.schemas import CompletionRequest
from protocol.errors import BadRequest
from protocol.logprobs import NumTop, PromptLogprobsAsked
from protocol.messages_gateway import Priority

DEFAULT_NEW_TOKENS: Final = 128
MAX_RID_CHARS: Final = 256
ONLY_OUTPUTS: Final = -1
ANY_JSON: Final = "$$ANY$$"  # SGLang's word for a JSON schema that allows everything
# Fields of `sampling_params` that have another name in OpenAI's API.
RENAMED: Final = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}

# Fields that may have a value for each prompt.
EACH: Final = "sampling_params rid return_logprob top_logprobs_num logprob_start_len cache_salt".split()

Rid = Annotated[str, Field(min_length=1, max_length=MAX_RID_CHARS)]
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


class NativePrompt(CompletionRequest):
    """One prompt of a native request, or several that share all fields."""

    source: str = "input_ids"
    without_limit: bool = False
    start_len: int = ONLY_OUTPUTS

    @property
    def prompt_name(self) -> str:
        """See GenerationRequest."""
        return self.source

    @property
    def default_tokens(self) -> int | None:
        """See GenerationRequest."""
        return None if self.without_limit else DEFAULT_NEW_TOKENS

    @property
    def scored_by(self) -> str:
        """See GenerationRequest."""
        return "logprob_start_len"

    @property
    def prompt_logprobs_asked(self) -> PromptLogprobsAsked | None:
        """See GenerationRequest. The token at `start_len` is told without one, as SGLang does."""
        if self.logprobs is None or self.start_len == ONLY_OUTPUTS:
            return None
        return PromptLogprobsAsked(self.logprobs, self.start_len + 1)

    def num_prompt_scores(self, num_tokens: int) -> int:
        """See GenerationRequest. Each choice has its own lists; each event of a stream has them again."""
        if self.logprobs is None or self.start_len == ONLY_OUTPUTS:
            return 0
        return self.num_choices * max(0, num_tokens - self.start_len) * (1 + self.logprobs)


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
        return [each.stream_interval or 1 for each in self._of_each("sampling_params", NativeSampling())]

    def requests(self) -> list[NativePrompt]:
        """What is asked for, as completions. BadRequest for fields that contradict one another."""
        if (self.text is None) == (self.input_ids is None):
            what = "neither is there" if self.text is None else "both are there"
            raise BadRequest(f"text, input_ids: {what}, expected one of them", param=self.prompt_name)

        sampling: Sequence[NativeSampling] = self._of_each("sampling_params", NativeSampling())
        asks = self._of_each("return_logprob", False)
        num_top = [
            top if asked else None for asked, top in zip(asks, self._of_each("top_logprobs_num", 0), strict=True)
        ]
        starts, salts = self._of_each("logprob_start_len", ONLY_OUTPUTS), self._of_each("cache_salt", None)
        _check_choices(sampling)

        fields = (
            self.sampling_params,
            self.return_logprob,
            self.top_logprobs_num,
            self.logprob_start_len,
            self.cache_salt,
        )
        if not any(isinstance(value, list) for value in fields):
            return [self._request(self.prompt_name, self.prompts, sampling[0], num_top[0], starts[0], salts[0])]
        sources = [f"{self.prompt_name}[{place}]" for place in range(len(self.prompts))]
        rows = zip(sources, self.prompts, sampling, num_top, starts, salts, strict=True)
        return [self._request(source, [prompt], *of_prompt) for source, prompt, *of_prompt in rows]

    def names(self, own: str) -> list[str]:
        """The id of each prompt. `own`: what they begin with if the client gives none. BadRequest if a list of ids
        does not fit."""
        if isinstance(self.rid, list):
            if len(set(self.rid)) < len(self.rid):
                raise BadRequest("rid: got an id twice, expected each once", param="rid")
            return list(self._of_each("rid", None))
        whole = own if self.rid is None else self.rid
        return [f"{whole}_{place}" for place in range(len(self.prompts))] if self.is_list else [whole]

    def _of_each(self, name: str, default: Any) -> Sequence[Any]:
        """The value of a field for each prompt."""
        value, num_prompts = getattr(self, name), len(self.prompts)
        if not isinstance(value, list):
            return [default if value is None else value] * num_prompts
        if len(value) != num_prompts:
            raise BadRequest(f"{name}: has {len(value)} items, expected {num_prompts}, one for each prompt", param=name)
        return value

    def _request(
        self,
        source: str,
        prompts: list[Any],
        sampling: NativeSampling,
        num_top: int | None,
        start_len: int,
        salt: str | None,
    ) -> NativePrompt:
        """A completion for prompts that share all fields. Its values are checked already."""
        given = {name: value for name, value in sampling if value is not None and name != "stream_interval"}
        if given.get("json_schema") == ANY_JSON:
            given["json_schema"] = True
        return NativePrompt.model_construct(
            source=source,
            without_limit="max_new_tokens" in sampling.model_fields_set,
            start_len=start_len,
            model=self.model,
            prompt=prompts,
            logprobs=num_top,
            add_special_tokens=self.add_special_tokens,
            cache_salt=salt,
            priority=self.priority,
            stream=self.stream,
            timeline=self.timeline,
            **{RENAMED.get(name, name): value for name, value in given.items()},
        )


def _check_choices(sampling: Sequence[NativeSampling]) -> None:
    """BadRequest unless all prompts have as many choices."""
    numbers = {params.num_choices for params in sampling}
    if len(numbers) > 1:
        raise BadRequest(
            f"sampling_params: got n of {min(numbers)} and {max(numbers)}, expected the same for all prompts",
            param="sampling_params",
        )


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
