"""Translates a client's request into token ids and sampling rules, checked against the model's limits.

Pure, except that it draws a seed for a request without one.
"""

import secrets
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.chat_template import ChatTemplates
from gateway.choice_text import StopSet
from gateway.limits import Limits, check_ids, check_text, max_tokens, prompt_too_long
from gateway.model_folder import ModelFolder
from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest, GenerationRequest
from gateway.tokenizer import TextTokenizer
from protocol.errors import BadRequest
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics

DEFAULT_COMPLETION_TOKENS = 16
NO_STOPS = StopSet(())
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready to be assigned: rules for the tokens of each choice, and for its text."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    num_choices: int
    stops: StopSet = NO_STOPS
    skip_special: bool = True


class Translator:
    """Translates requests for one model. Methods may run in threads, since they change nothing."""

    def __init__(self, folder: ModelFolder, tokenizer: TextTokenizer | None, templates: ChatTemplates) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._eos_token_ids = _eos_token_ids(folder.basics, tokenizer)
        self._templates = templates

    def completion_prompts(self, request: CompletionRequest, limits: Limits) -> list[list[int]]:
        """Token ids of each prompt. BadRequest for text without a tokenizer, or text that is far too long."""
        found: list[list[int]] = []
        for place, each in enumerate(request.prompts):
            if isinstance(each, str):
                where = f"prompt[{place}]" if request.num_prompts > 1 else "prompt"
                each = self._encode(each, where, limits, request.add_special_tokens is not False)
            found.append(each)
        return found

    def chat_prompt(self, request: ChatRequest, limits: Limits) -> list[int]:
        """Token ids of the conversation, rendered by the model's template. BadRequest if it is far too long."""
        if self._tokenizer is None:
            raise BadRequest(
                "messages: this model has no tokenizer; use /v1/completions with token ids", param="messages"
            )
        messages = [message.for_template() for message in request.messages]
        text = self._templates.render(messages, request.chat_template, request.chat_template_kwargs or {})
        return self._encode(text, "messages", limits, add_special_tokens=False)

    def prompts(self, request: AnyRequest, limits: Limits) -> list[Prompt]:
        """Each prompt with its rules. BadRequest if one of them could never be served."""
        if isinstance(request, ChatRequest):
            token_ids = [self.chat_prompt(request, limits)]
        else:
            token_ids = self.completion_prompts(request, limits)

        is_chat = isinstance(request, ChatRequest)
        default = None if is_chat else DEFAULT_COMPLETION_TOKENS
        num_choices, stops = request.num_choices, self._stops(request)

        if limits.max_choices is not None and num_choices > limits.max_choices:
            raise BadRequest(
                f"n: got {num_choices}, expected at most {limits.max_choices}, the requests a worker runs at once",
                param="n",
            )

        rules = self._sampling(request, limits)
        skip_special = request.skip_special_tokens is not False
        prompts: list[Prompt] = []
        for place, ids in enumerate(token_ids):
            where = "messages" if is_chat else "prompt" if len(token_ids) == 1 else f"prompt[{place}]"
            check_ids(ids, where, limits)
            asked = request.max_completion_tokens or request.max_tokens
            num_tokens = max_tokens(len(ids), asked, default, num_choices, where, limits)

            if rules.min_tokens > num_tokens:
                raise BadRequest(
                    f"min_tokens: got {rules.min_tokens}, expected at most max_tokens, which is {num_tokens}",
                    param="min_tokens",
                )
            sampling = replace(rules, max_tokens=num_tokens)
            prompts.append(Prompt(tuple(ids), sampling, num_choices, stops, skip_special))
        return prompts

    def _encode(self, text: str, where: str, limits: Limits, add_special_tokens: bool) -> list[int]:
        if self._tokenizer is None:
            raise BadRequest("prompt: this model has no tokenizer: got text, expected token ids", param="prompt")
        check_text(self._tokenizer.least_tokens(text), len(text), where, limits)
        encode = self._tokenizer.encode_prompt if add_special_tokens else self._tokenizer.encode_plain
        ids = encode(text, limits.longest_prompt)
        if ids is None:
            raise prompt_too_long(where, len(text), limits)
        return ids

    def _stops(self, request: GenerationRequest) -> StopSet:
        if request.stop and self._tokenizer is None:
            raise BadRequest("stop: this model has no tokenizer; use stop_token_ids", param="stop")
        return StopSet([request.stop] if isinstance(request.stop, str) else request.stop or ())

    def _sampling(self, request: GenerationRequest, limits: Limits) -> SamplingParams:
        """The rules that all prompts share. `prompts` sets `max_tokens`."""
        defaults = self._folder.defaults
        stop_token_ids = tuple(dict.fromkeys(request.stop_token_ids or ()))
        for token_id in stop_token_ids:
            if limits.vocab_size is not None and token_id >= limits.vocab_size:
                raise BadRequest(
                    f"stop_token_ids: got {token_id}, expected ids below the vocabulary size {limits.vocab_size}",
                    param="stop_token_ids",
                )

        return SamplingParams(
            max_tokens=1,
            min_tokens=request.min_tokens or 0,
            temperature=_or(request.temperature, defaults.temperature),
            top_k=max(0, _or(request.top_k, defaults.top_k)),
            top_p=_or(request.top_p, defaults.top_p),
            min_p=_or(request.min_p, defaults.min_p),
            seed=_or(request.seed, secrets.randbits(63)),
            stop_token_ids=stop_token_ids,
            eos_token_ids=self._eos_token_ids,
            ignore_eos=request.ignore_eos is True,
        )


def _eos_token_ids(basics: ModelBasics, tokenizer: TextTokenizer | None) -> tuple[int, ...]:
    """The tokens that end a choice: the EOS of the configuration and that of the tokenizer, which only the chat format
    may use. Leaves out ids outside the vocabulary."""
    own = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
    both = dict.fromkeys((*(basics.eos_token_ids or ()), *own))
    return tuple(each for each in both if basics.vocab_size is None or each < basics.vocab_size)


def _or(asked: N | None, default: N) -> N:
    return default if asked is None else asked
