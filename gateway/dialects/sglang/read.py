"""From the body of POST /generate to what it asks for, and how the client writes each place of that.

Where a field has a value for each prompt, each prompt becomes an Ask of its own.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from gateway.dialects.sglang.fields import (
    ANY_JSON,
    DEFAULT_NEW_TOKENS,
    INSIDE,
    ONLY_OUTPUTS,
    GenerateRequest,
    NativeSampling,
)
from gateway.dialects.shared.grammar_fields import only_grammar
from gateway.words.places import (
    ABORT_IDS,
    FIRST_PROMPT,
    MAX_TOKENS,
    MIN_TOKENS,
    NUM_CHOICES,
    PROMPT_SCORES,
    PROMPTS,
    SAMPLING,
    STOP_TOKEN_IDS,
    STOPS,
    Origin,
    Origins,
    field,
)
from gateway.words.request import Ask, PromptIds, PromptScores, PromptText, Sampling
from protocol.errors import BadRequest


def _inside(name: str) -> Origin:
    return Origin(INSIDE + name, INSIDE + name, name)


NAMES: Final[Origins] = {
    **{(*SAMPLING, each.name): _inside(each.name) for each in fields(Sampling)},
    (*SAMPLING, "seed"): _inside("sampling_seed"),
    NUM_CHOICES: _inside("n"),
    MAX_TOKENS: _inside("max_new_tokens"),
    MIN_TOKENS: _inside("min_new_tokens"),
    STOPS: _inside("stop"),
    STOP_TOKEN_IDS: _inside("stop_token_ids"),
    PROMPT_SCORES: field("logprob_start_len"),
    ABORT_IDS: field("rid"),
}


def asks_of(body: GenerateRequest) -> list[Ask]:
    """What the client asks for. BadRequest for fields that contradict one another."""
    if (body.text is None) == (body.input_ids is None):
        what = "neither is there" if body.text is None else "both are there"
        raise BadRequest(f"text, input_ids: {what}, expected one of them", param=body.prompt_name)

    sampling: Sequence[NativeSampling] = body.of_each("sampling_params", NativeSampling())
    num_top, starts, salts = body.num_top, body.starts, body.of_each("cache_salt", None)
    _check_choices(sampling)

    each = (body.sampling_params, body.return_logprob, body.top_logprobs_num, body.logprob_start_len, body.cache_salt)
    if not any(isinstance(value, list) for value in each):
        return [_ask(body, body.prompt_name, body.prompts, sampling[0], num_top[0], starts[0], salts[0])]
    sources = [f"{body.prompt_name}[{position}]" for position in range(len(body.prompts))]
    rows = zip(sources, body.prompts, sampling, num_top, starts, salts, strict=True)
    return [_ask(body, source, [prompt], *of_prompt) for source, prompt, *of_prompt in rows]


def _check_choices(sampling: Sequence[NativeSampling]) -> None:
    """BadRequest unless all prompts have as many choices."""
    numbers = {params.num_choices for params in sampling}
    if len(numbers) > 1:
        raise BadRequest(
            f"sampling_params: got n of {min(numbers)} and {max(numbers)}, expected the same for all prompts",
            param="sampling_params",
        )


def _ask(
    body: GenerateRequest,
    source: str,
    prompts: list[Any],
    params: NativeSampling,
    num_top: int | None,
    start: int,
    salt: str | None,
) -> Ask:
    """Prompts that share all fields. `source`: how the client writes them."""
    origins = {**NAMES, PROMPTS: field(body.prompt_name)}
    if len(prompts) == 1:
        origins[FIRST_PROMPT] = Origin(source, body.prompt_name, source)
    given = params.model_copy(update={"json_schema": True}) if params.json_schema == ANY_JSON else params
    asked = only_grammar(given.grammars(), INSIDE)

    scores, add_special = None, body.add_special_tokens is not False
    if num_top is not None and start != ONLY_OUTPUTS:  # each choice has its own lists
        scores = PromptScores(num_top, start, params.num_choices * (1 + num_top))
    return Ask(
        prompts=[
            PromptText(prompt, add_special) if isinstance(prompt, str) else PromptIds(prompt) for prompt in prompts
        ],
        origins=origins if asked is None else {**origins, **asked.origins(INSIDE)},
        model=body.model,
        num_choices=params.num_choices,
        sampling=params.sampling(params.sampling_seed),
        max_tokens=params.max_new_tokens,
        default_tokens=None if "max_new_tokens" in params.model_fields_set else DEFAULT_NEW_TOKENS,
        min_tokens=params.min_new_tokens or 0,
        stops=params.stops,
        stop_token_ids=params.stop_token_ids or (),
        ignore_eos=params.ignore_eos is True,
        shape=None if asked is None else asked.grammar,
        scores=num_top,
        prompt_scores=scores,
        keep_special=params.skip_special_tokens is False,
        cache_salt=salt or "",
        priority=body.priority or 0,
        timeline=body.timeline,
    )
