"""Translates a client's request into token ids and sampling rules, checked against the limits of model and workers.

Pure, except that it draws a seed for a request without one.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.chat_template import ChatTemplates
from gateway.checks import check_drawable, check_ids, max_tokens, prompt_too_long, refuse
from gateway.choice_text import Detokenizer
from gateway.echo import Echo, echo_of
from gateway.grammars import asked
from gateway.limits import Limits, field_of, too_long
from gateway.logit_rules import rules_of
from gateway.model_folder import ModelFolder
from gateway.prompt import Prompt
from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest, GenerationRequest
from gateway.stop_strings import StopSet
from gateway.template_messages import for_template
from gateway.tokenizer import TextTokenizer
from protocol.grammar import grammar_name
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics
from runtime.settings import LogprobsMode

NO_STOPS = StopSet(())
MAX_SCORES = 1_000_000  # of prompts, as often as one answer tells them: some 75 MB


@dataclass(frozen=True)
class PreparedPrompt(Prompt):
    """One prompt, with the rules for the text of its choices."""

    stops: StopSet = NO_STOPS
    skip_special: bool = True
    echo: Echo | None = None
    is_echoed_only: bool = False  # its answers have no tokens; workers draw one, which is dropped
    num_scores: int = 0  # log-probabilities of its own tokens, as often as its choices tell them


class Translator:
    """Translates requests for one model. Methods may run in threads, since they change nothing."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: TextTokenizer | None,
        templates: ChatTemplates,
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        self._tokenizer, self._templates = tokenizer, templates
        self._has_processed_logprobs = logprobs_mode == "processed_logprobs"
        self._defaults = replace(folder.defaults, eos_token_ids=_eos_token_ids(folder.basics, tokenizer))

    @property
    def template_names(self) -> tuple[str, ...]:
        """The names of the model's chat templates."""
        return self._templates.names

    @property
    def takes_text(self) -> bool:
        """Whether the model has a tokenizer."""
        return self._tokenizer is not None

    @property
    def growth(self) -> int:
        """How many times longer the tokenizer may make a text before it reads it."""
        return 1 if self._tokenizer is None else self._tokenizer.growth

    @property
    def takes_empty_text(self) -> bool:
        """Whether an empty text is a prompt, because the tokenizer adds special tokens."""
        return self._tokenizer is not None and bool(self._tokenizer.encode_prompt(""))

    def all_prompts(
        self, requests: Sequence[AnyRequest], limits: Limits, grammars: Sequence[str]
    ) -> list[PreparedPrompt]:
        """Each prompt of requests that are answered together and have as many choices a prompt. `grammars`: the text
        of the grammar of each request. BadRequest if a prompt could never be served, or if the prompts are more than
        workers can hold together."""
        num_choices = requests[0].num_choices
        if limits.max_choices is not None and num_choices > limits.max_choices:
            refuse("n", f"got {num_choices}, expected at most {limits.max_choices}, the requests a worker runs at once")

        most, found = limits.prompts_at_once(num_choices), sum(request.num_prompts for request in requests)
        if most is not None and found > most:
            each = f" of {num_choices} choices each" if num_choices > 1 else ""
            what = f"got {found} prompts{each}, expected at most {most}, which the workers run and let wait together"
            refuse(field_of(requests[0].prompt_name), what)
        stops: dict[tuple[str, ...], StopSet] = {}  # prompts of one call often share them
        prompts = [
            prompt
            for request, grammar in zip(requests, grammars, strict=True)
            for prompt in self.prompts(request, limits, grammar, stops)
        ]
        if (num_scores := sum(prompt.num_scores for prompt in prompts)) > MAX_SCORES:
            what = f"the answer would tell {num_scores} log-probabilities of prompts, expected at most {MAX_SCORES}"
            if num_choices > 1:
                what += f"; each of {num_choices} choices has its own list"
            refuse(requests[0].scored_by, what)
        return prompts

    def prompts(
        self,
        request: AnyRequest,
        limits: Limits,
        grammar: str = "",
        known_stops: dict[tuple[str, ...], StopSet] | None = None,
    ) -> list[PreparedPrompt]:
        """Each prompt with its rules. `grammar`: the text of the one that the request asks for. `known_stops`: those
        of requests before; this one's are added. BadRequest if one of them could never be served."""
        if isinstance(request, ChatRequest):
            found = {"messages": self.chat_prompt(request, limits)}
        else:
            found = self.completion_prompts(request, limits)
        num_choices, stops = request.num_choices, self._stops(request, {} if known_stops is None else known_stops)

        rules = self._sampling(request, limits, grammar)
        check_drawable(rules, limits)
        field = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
        asked: int | None = getattr(request, field)
        prompts: list[PreparedPrompt] = []
        for where, ids in found.items():
            check_ids(ids, where, limits)
            if (scored := request.prompt_logprobs_asked) is not None and scored.start > len(ids):
                refuse(
                    "logprob_start_len", f"got {scored.start - 1}, expected less than the {len(ids)} tokens of {where}"
                )
            num_tokens = max_tokens(len(ids), asked, request.default_tokens, num_choices, where, limits, field)
            if rules.min_tokens > num_tokens:
                what = f"got {rules.min_tokens}, expected at most max_tokens, which is {num_tokens}"
                refuse("min_tokens", what)
            prompts.append(
                PreparedPrompt(
                    tuple(ids),
                    replace(rules, max_tokens=max(num_tokens, 1)),
                    num_choices,
                    request.cache_salt or "",
                    request.priority or 0,
                    grammar,
                    scored,
                    stops=stops,
                    skip_special=request.skip_special_tokens is not False,
                    echo=self._echo(request, len(prompts), ids) if request.echo else None,
                    is_echoed_only=num_tokens == 0,
                    num_scores=request.num_prompt_scores(len(ids)),
                )
            )
        return prompts

    def _echo(self, request: AnyRequest, place: int, ids: Sequence[int]) -> Echo | None:
        """What the answers to the prompt at `place` begin with."""
        if isinstance(request, ChatRequest):
            last = for_template(request.messages[-1])
            return Echo(last["content"]) if last["role"] == "assistant" else None
        given = request.prompts[place]
        detokenizer = self.new_detokenizer((), request.skip_special_tokens is not False)
        return echo_of(given if isinstance(given, str) else None, ids, detokenizer, request.logprobs)

    def new_detokenizer(self, prompt_ids: Sequence[int], skip_special: bool) -> Detokenizer:
        """The detokenizer for one choice of this prompt."""
        return Detokenizer() if self._tokenizer is None else self._tokenizer.detokenizer(prompt_ids, skip_special)

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself; "" if it has none. What is no whole character is shown as U+FFFD."""
        return (self.token_bytes(token_id) or b"").decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token; None for one that has no text."""
        return None if self._tokenizer is None else self._tokenizer.bytes_of(token_id)

    def completion_prompts(self, request: CompletionRequest, limits: Limits) -> dict[str, list[int]]:
        """Token ids of each prompt, by its name: "prompt", or "prompt[1]" if there are several."""
        found: dict[str, list[int]] = {}
        for place, each in enumerate(request.prompts):
            where = request.prompt_name if request.num_prompts == 1 else f"{request.prompt_name}[{place}]"
            if isinstance(each, str):
                each = self._encode(each, where, limits, request.add_special_tokens is not False)
            found[where] = each
        return found

    def chat_prompt(self, request: ChatRequest, limits: Limits) -> list[int]:
        """Token ids of the conversation, rendered by the model's template."""
        if self._tokenizer is None:
            refuse("messages", "this model has no tokenizer; use /v1/completions with token ids")
        messages = [for_template(message) for message in request.messages]
        text = self._templates.render(messages, request.chat_template, request.template_variables)
        return self._encode(text, "messages", limits, request.add_special_tokens is True)

    def _encode(self, text: str, where: str, limits: Limits, add_special_tokens: bool) -> list[int]:
        """Token ids of one text. ContextLengthExceeded if it is far too long."""
        if self._tokenizer is None:
            refuse(where, "this model has no tokenizer: got text, expected token ids")

        least = self._tokenizer.least_tokens(text)  # tokenising a long text would take seconds
        if limits.context_length is not None and least > limits.context_length:
            raise too_long(f"{where} has {len(text)} characters, at least {least} tokens", field_of(where), limits)

        encode = self._tokenizer.encode_prompt if add_special_tokens else self._tokenizer.encode_plain
        ids = encode(text, limits.longest_prompt)
        if ids is None:
            raise prompt_too_long(where, len(text), limits)
        return ids

    def _stops(self, request: GenerationRequest, known: dict[tuple[str, ...], StopSet]) -> StopSet:
        if request.stop and self._tokenizer is None:
            refuse("stop", "this model has no tokenizer; use stop_token_ids")
        strings = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
        if strings not in known:
            known[strings] = StopSet(strings)
        return known[strings]

    def _sampling(self, request: GenerationRequest, limits: Limits, grammar: str) -> SamplingParams:
        """The rules that all prompts share. `prompts` sets `max_tokens`."""
        stop_token_ids = tuple(dict.fromkeys(request.stop_token_ids or ()))
        for token_id in stop_token_ids:
            if limits.vocab_size is not None and token_id >= limits.vocab_size:
                refuse("stop_token_ids", f"got {token_id}, expected ids below the vocabulary size {limits.vocab_size}")

        names = ("min_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
        asked = {name: value for name in names if (value := getattr(request, name)) is not None}
        params = replace(
            self._defaults,
            **{"seed": secrets.randbits(63), **asked, "top_k": max(0, asked.get("top_k", self._defaults.top_k))},
            stop_token_ids=stop_token_ids,
            ignore_eos=request.ignore_eos is True,
            grammar=grammar_name(grammar),
        )
        num_top, logprobs = request.num_top_logprobs, None
        if num_top is not None:
            logprobs = LogprobsAsked(num_top, self._has_processed_logprobs)
        if grammar:
            self._check_grammar(request, params)
        rules = rules_of(request, params, self._tokenizer, limits.vocab_size)
        return replace(params, rules=rules, logprobs=logprobs)

    def _check_grammar(self, request: GenerationRequest, params: SamplingParams) -> None:
        """Refuses a grammar if this model cannot follow any."""
        why = ""
        if self._tokenizer is None:
            why = "this model has no tokenizer, so its answers follow no grammar"
        elif not params.eos_token_ids:
            why = "this model has no EOS token, with which an answer in a grammar ends"
        if why and (wanted := asked(request)) is not None:
            refuse(wanted.param, why)


def _eos_token_ids(basics: ModelBasics, tokenizer: TextTokenizer | None) -> tuple[int, ...]:
    """The tokens that end a choice: the EOS of the configuration and that of the tokenizer, which only the chat format
    may use. Leaves out ids outside the vocabulary."""
    own = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
    both = dict.fromkeys((*(basics.eos_token_ids or ()), *own))
    return tuple(each for each in both if basics.vocab_size is None or each < basics.vocab_size)
