"""Fields of a request that say how the tokens of its choices are drawn, and types that fields of all APIs share.

OpenAI's API has them beside the other fields, SGLang's in an object of their own.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from gateway.words.request import Sampling
from protocol.logit_rules import MAX_BIAS, MAX_PENALTY, MIN_REPETITION_PENALTY

KEYWORDS = "x-keywords"  # in a schema: those whose values are still to be filled in
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
INT32, INT64 = 2**31, 2**63


def shown(**keywords: Any) -> Any:
    """What /openapi.json says about a value beyond its type and checks: keywords of JSON schema. A text stands for the
    attribute of openapi_rules.Bounds that has the value."""
    return Field(json_schema_extra={KEYWORDS: keywords})


def told(description: str, *examples: Any, **keywords: Any) -> Any:
    """What /openapi.json and /docs say about a field. `keywords`: see `shown`. Without an example, one is made."""
    extra: dict[str, Any] | None = {KEYWORDS: keywords} if keywords else None
    return Field(description=description, examples=list(examples), json_schema_extra=extra)


Positive = Annotated[int, Field(ge=1, lt=INT32)]
Least = Annotated[int, Field(ge=0, lt=INT32)]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64)]
TokenId = Annotated[int, Field(ge=0, lt=INT32), shown(exclusiveMaximum="limits.vocab_size")]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _let_others_run(ids: list[int]) -> list[int]:
    """Returns `ids`. This call into Python lets other threads run between two lists."""
    return ids


# One error is enough: a long list could have millions.
Ids = Annotated[list[TokenId], Field(fail_fast=True), AfterValidator(_let_others_run)]


class SamplingFields(BaseModel, strict=True, allow_inf_nan=False):
    """Those that have the same name in all APIs."""

    temperature: Annotated[
        Annotated[float, Field(ge=0, le=2)] | None,
        told("0: always the likeliest token. Absent: as generation_config.json says, else 1.", 0.7),
    ] = None
    top_p: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        told("Only the likeliest tokens that reach this probability together are drawn. 1: off.", 0.9),
    ] = None
    top_k: Annotated[
        Annotated[int, Field(ge=-1, lt=INT32)] | None,
        told("Only so many of the likeliest tokens are drawn. 0 and -1: off.", 20),
    ] = None
    min_p: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        told("Only tokens at least so probable are drawn, as a share of the likeliest one. 0: off.", 0.05),
    ] = None
    stop: Annotated[
        Stop | Annotated[list[Stop], Field(fail_fast=True), shown(maxItems="http.max_stop_strings")] | None,
        told("A choice ends before the first of these texts.", "\n\n", ["The end", "###"], enum="only_empty"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[Ids, Field(max_length=MAX_STOP_TOKEN_IDS)] | None,
        told("A choice ends after the first of these tokens, as after EOS.", [2, 3]),
    ] = None
    ignore_eos: Annotated[bool | None, told("EOS does not end a choice.", True)] = None
    frequency_penalty: Annotated[
        Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None,
        told("Subtracted from a token's logit for each time that it is in the answer so far. 0: off.", 0.5),
    ] = None
    presence_penalty: Annotated[
        Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None,
        told("Subtracted once from the logits of tokens that are in the answer so far. 0: off.", 0.5),
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_PENALTY)] | None,
        told(
            "Positive logits of tokens in the prompt or the answer so far are divided by it, negative ones multiplied. "
            "1: off. Absent: as generation_config.json says, else 1.",
            1.1,
        ),
    ] = None
    logit_bias: Annotated[
        Annotated[
            dict[str, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]],
            Field(fail_fast=True),
            shown(propertyNames={"pattern": "^[0-9]{1,10}$"}),
        ]
        | None,
        told("Added to the logits of these token ids, which are written as text.", {"50": -100, "7": 2.5}),
    ] = None
    n: Annotated[
        Annotated[Positive, shown(maximum="most_choices")] | None, told("Choices of each prompt. Absent: 1.", 2)
    ] = None
    skip_special_tokens: Annotated[bool | None, told("`false`: special tokens appear in the text.", False)] = None

    @property
    def num_choices(self) -> int:
        """Choices of each prompt."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(
        self, seed: int | None, allowed_token_ids: list[int] | None = None, bad_words: Sequence[str] = ()
    ) -> Sampling:
        """How tokens are drawn. What is given here has other names elsewhere, or is in one API alone."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=seed,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias or {},
            allowed_token_ids=allowed_token_ids,
            bad_words=bad_words,
        )


MAX_SALT_CHARS = 256


# Prompts: one or several, as text or as token ids.
Text = Annotated[str, shown(minLength="least_chars")]
Texts = Annotated[list[Text], Field(min_length=1, fail_fast=True), shown(maxItems="http.max_prompts")]
PromptIds = Annotated[Ids, Field(min_length=1), shown(maxItems="longest_prompt")]
SeveralIds = Annotated[
    list[Annotated[Ids, shown(minItems=1, maxItems="longest_prompt")]],
    Field(min_length=1, fail_fast=True),
    shown(maxItems="http.max_prompts"),
]
