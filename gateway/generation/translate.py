"""Translates what a client asks for into token ids and sampling rules, checked against the limits of model and workers.

Pure, except that it draws a seed for a request without one.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from gateway.generation.checks import check_drawable, check_ids, max_tokens, prompt_too_long, refuse
from gateway.generation.conversations import (
    check_budget,
    check_conversation,
    check_format,
    is_bound,
    no_budget,
    refuse_both,
)
from gateway.generation.logit_rules import rules_of
from gateway.generation.tool_grammars import grammar_of_calls
from gateway.text.answer_format import PLAIN, AnswerFormat, ChannelRules
from gateway.text.channels.channels import MAX_CALLS
from gateway.text.chat_template import ChatTemplates
from gateway.text.detokenizer import Detokenizer
from gateway.text.echo import Echo, echo_of
from gateway.text.model_folder import ModelFolder
from gateway.text.plain_marks import MARK
from gateway.text.stop_strings import StopSet
from gateway.text.tokenizer import TextTokenizer
from gateway.words.limits import Limits, too_long
from gateway.words.places import (
    CHOICE,
    FIRST_PROMPT,
    MAX_TOKENS,
    MIN_TOKENS,
    NUM_CHOICES,
    PROMPT_SCORES,
    PROMPTS,
    REASONING_TOKENS,
    SHAPE,
    STOP_TOKEN_IDS,
    STOPS,
    TOKENS,
    TOOLS,
    Place,
    named,
)
from gateway.words.prompt import Prompt
from gateway.words.request import Ask, Conversation, Grammar, PromptIds, PromptText, Text
from protocol.grammar import grammar_name
from protocol.logprobs import LogprobsAsked, PromptLogprobsAsked
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics
from runtime.settings import LogprobsMode

NO_STOPS = StopSet(())
MAX_TOLD_IDS = 1_000_000  # of one answer of /tokenize
PROMPT_END = 32  # tokens of a prompt's end; no marker has so many, with line breaks behind it
MAX_SCORES = 1_000_000  # of prompts, as often as one answer tells them: some 75 MB


@dataclass(frozen=True)
class PreparedPrompt(Prompt):
    """One prompt, with the rules for the text of its choices."""

    stops: StopSet = NO_STOPS
    skip_special: bool = True
    channels: ChannelRules | None = None  # None: its answers are text alone
    echo: Echo | None = None
    is_echoed_only: bool = False  # its answers have no tokens; workers draw one, which is dropped
    num_scores: int = 0  # log-probabilities of its own tokens, as often as its choices tell them


class Translator:
    """Translates requests for one model. Methods may run in threads, since they change nothing. `answers`: how the
    model's answers are read; if no format of calls is known, requests with tools are refused."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: TextTokenizer | None,
        templates: ChatTemplates,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        answers: AnswerFormat = PLAIN,
    ) -> None:
        self._tokenizer, self._templates, self._answers = tokenizer, templates, answers
        self._has_processed_logprobs = logprobs_mode == "processed_logprobs"
        self._defaults = replace(folder.defaults, eos_token_ids=_eos_token_ids(folder.basics, tokenizer))

    @property
    def template_names(self) -> tuple[str, ...]:
        """The names of the model's chat templates."""
        return self._templates.names

    @property
    def takes_tools(self) -> bool:
        """Whether calls can be read from the model's answers."""
        return self._answers.calls is not None

    @property
    def takes_budgets(self) -> bool:
        """Whether answers can keep a budget of reasoning tokens."""
        return no_budget(self._answers.markers) is None

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

    def shape_of(self, ask: Ask) -> Grammar | None:
        """The grammar that answers follow: what is asked for, or that of calls that must be made or follow a schema,
        and of thoughts that keep a budget."""
        prompt = ask.prompts[0]
        if not self._needs_grammar(prompt):
            return ask.shape
        with named(ask.origins):
            if ask.shape is not None:
                refuse_both(prompt)
                return ask.shape
            markers, text = self._answers.markers, self._rendered(prompt)
            tokens, is_open = set(markers.by_id.values()), markers.is_reasoning_open(text)
            return grammar_of_calls(markers.format, tokens, prompt, is_reasoning_open=is_open)

    def renders_for_shape(self, ask: Ask) -> bool:
        """Whether `shape_of` renders its conversation, which takes as long as it has text."""
        return ask.shape is None and self._needs_grammar(ask.prompts[0])

    def _needs_grammar(self, prompt: PromptText | PromptIds | Conversation) -> TypeGuard[Conversation]:
        """Whether only a grammar of thoughts and calls can hold its answer."""
        if not isinstance(prompt, Conversation):
            return False
        return prompt.reasoning_tokens is not None or (self.takes_tools and is_bound(prompt))

    def all_prompts(self, asks: Sequence[Ask], limits: Limits, grammars: Sequence[str]) -> list[PreparedPrompt]:
        """Each prompt of asks that are answered together and have as many choices a prompt. `grammars`: the text of the
        grammar of each ask. Fault if a prompt could never be served, or if the prompts are more than workers can hold
        together."""
        first = asks[0]
        with named(first.origins):
            _check_numbers(first.num_choices, sum(len(ask.prompts) for ask in asks), limits)

        stops: dict[tuple[str, ...], StopSet] = {}  # prompts of one call often share them
        prompts = [
            prompt
            for ask, grammar in zip(asks, grammars, strict=True)
            for prompt in self.prompts(ask, limits, grammar, stops)
        ]
        if (num_scores := sum(prompt.num_scores for prompt in prompts)) > MAX_SCORES:
            what = f"the answer would tell {num_scores} log-probabilities of prompts, expected at most {MAX_SCORES}"
            if first.num_choices > 1:
                what += f"; each of {first.num_choices} choices has its own list"
            with named(first.origins):
                refuse(PROMPT_SCORES, what)
        return prompts

    def prompts(
        self, ask: Ask, limits: Limits, grammar: str = "", known_stops: dict[tuple[str, ...], StopSet] | None = None
    ) -> list[PreparedPrompt]:
        """Each prompt with its rules. `grammar`: the text of the one that is asked for. `known_stops`: those of asks
        before; this one's are added. Fault if one of them could never be served."""
        with named(ask.origins):
            arguments = self.token_ids(ask, limits)
            stops = self._stops(ask, {} if known_stops is None else known_stops)
            rules = self._sampling(ask, limits, grammar)
            check_drawable(rules, limits)
            prompts = []
            for position, ids in enumerate(arguments):
                num_tokens = _num_tokens(ask, position, ids, limits, self._beside(ask.prompts[position]))
                prompts.append(self._prompt(ask, position, ids, replace(rules, max_tokens=num_tokens), grammar, stops))
            return prompts

    def token_ids(self, ask: Ask, limits: Limits) -> list[Sequence[int]]:
        """Token ids of each prompt. Those of a conversation are rendered by the model's template."""
        with named(ask.origins):
            return [
                self._token_ids(prompt, (*PROMPTS, position), limits) for position, prompt in enumerate(ask.prompts)
            ]

    def tokenize(self, ask: Ask) -> Sequence[int]:
        """Token ids of the only prompt, also of one that is longer than the context."""
        prompt = ask.prompts[0]
        with named(ask.origins):
            if self._tokenizer is None:
                refuse(FIRST_PROMPT, "this model has no tokenizer")
            if isinstance(prompt, PromptIds):
                return prompt.ids
            is_rendered = isinstance(prompt, Conversation)
            text = self._rendered(prompt) if isinstance(prompt, Conversation) else prompt.text
            ids = _ids_of(self._tokenizer, text, MAX_TOLD_IDS, prompt.add_special, is_rendered=is_rendered)
            if ids is None or len(ids) > MAX_TOLD_IDS:
                refuse(FIRST_PROMPT, f"has more than {MAX_TOLD_IDS} tokens, expected at most so many")
            return ids

    def detokenize(self, token_ids: Sequence[int], limits: Limits) -> str:
        """The text of these tokens, special ones as they are spelt."""
        if self._tokenizer is None:
            refuse(TOKENS, "this model has no tokenizer")
        vocab_size = limits.vocab_size or self._tokenizer.vocab_size
        if max(token_ids, default=0) >= vocab_size:
            refuse(TOKENS, f"got token id {max(token_ids)}, expected ids below the vocabulary size {vocab_size}")
        detokenizer = self._tokenizer.detokenizer((), skip_special=False)
        return "".join([*map(detokenizer.feed, token_ids), detokenizer.flush()])

    def token_name(self, token_id: int) -> str:
        """A token as the vocabulary spells it; "" if it has none."""
        return "" if self._tokenizer is None else self._tokenizer.name_of(token_id)

    def _token_ids(self, prompt: PromptText | PromptIds | Conversation, where: Place, limits: Limits) -> Sequence[int]:
        if isinstance(prompt, PromptIds):
            return prompt.ids
        if isinstance(prompt, PromptText):
            return self._encode(prompt.text, where, limits, prompt.add_special)

        if self._tokenizer is None:
            refuse(where, "this model has no tokenizer; use /v1/completions with token ids")
        text, beside = self._rendered(prompt), self._beside(prompt)
        return self._encode(text, where, limits, prompt.add_special, is_rendered=True, beside=beside)

    def _rendered(self, conversation: Conversation) -> str:
        """The text of a conversation. Fault if it makes no sense, if the template cannot tell all of it, or if answers
        cannot keep its budget."""
        check_conversation(conversation)
        check_budget(conversation, self._answers.markers)
        conversation = self._shown(conversation)
        check_format(conversation, self._templates, self._answers.calls)
        return self._templates.render_conversation(conversation)

    def _shown(self, conversation: Conversation) -> Conversation:
        """The conversation that the template renders.

        Its tools are left out if the client forbids calls and no format of calls is known.
        """
        drops = conversation.choice == "none" and not self.takes_tools
        return replace(conversation, tools=()) if drops else conversation

    def _beside(self, prompt: PromptText | PromptIds | Conversation) -> tuple[str | Place, ...]:
        """A sentence about the length of this prompt names its tools beside its place, if it tells some."""
        return (" with ", TOOLS) if isinstance(prompt, Conversation) and self._shown(prompt).tools else ()

    def _prompt(
        self, ask: Ask, position: int, ids: Sequence[int], rules: SamplingParams, grammar: str, stops: StopSet
    ) -> PreparedPrompt:
        """The prompt at `position`, with its rules. `rules.max_tokens`: 0 for one that is echoed only."""
        scores = ask.prompt_scores
        return PreparedPrompt(
            tuple(ids),
            replace(rules, max_tokens=max(rules.max_tokens, 1)),
            ask.num_choices,
            ask.cache_salt,
            ask.priority,
            grammar,
            None if scores is None else PromptLogprobsAsked(scores.num_top, scores.start + 1),
            stops=stops,
            skip_special=not ask.keep_special,
            channels=self._channels(ask, position, ids),
            echo=self._echo(ask, position, ids) if ask.echo else None,
            is_echoed_only=rules.max_tokens == 0,
            num_scores=0 if scores is None else scores.num_told(len(ids)),
        )

    def _echo(self, ask: Ask, position: int, ids: Sequence[int]) -> Echo | None:
        """What the answers to the prompt at `position` begin with."""
        prompt = ask.prompts[position]
        if isinstance(prompt, Conversation):
            last = prompt.turns[-1]
            texts = (part.text for part in last.parts if isinstance(part, Text))
            return Echo("".join(texts)) if last.role == "assistant" else None
        text = prompt.text if isinstance(prompt, PromptText) else None
        return echo_of(text, ids, self.new_detokenizer((), not ask.keep_special), ask.scores)

    def _channels(self, ask: Ask, position: int, ids: Sequence[int]) -> ChannelRules | None:
        """How the answers to the prompt at `position` are read. What follows a grammar is text alone."""
        prompt, markers = ask.prompts[position], self._answers.markers
        if not isinstance(prompt, Conversation) or ask.shape is not None or self._tokenizer is None:
            return None

        tools = {} if prompt.choice == "none" else {tool.name: tool.schema for tool in prompt.tools}
        if not tools and markers.format.reasoning is None:
            return None
        end = self._tokenizer.detokenizer((), skip_special=False)
        text = "".join([*map(end.feed, ids[-PROMPT_END:]), end.flush()])
        most_calls = MAX_CALLS if prompt.parallel else 1
        return ChannelRules(markers, tools, markers.is_reasoning_open(text), most_calls)

    def new_detokenizer(self, prompt_ids: Sequence[int], skip_special: bool) -> Detokenizer:
        """The detokenizer for one choice of this prompt."""
        return Detokenizer() if self._tokenizer is None else self._tokenizer.detokenizer(prompt_ids, skip_special)

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself; "" if it has none. What is no whole character is shown as U+FFFD."""
        return (self.token_bytes(token_id) or b"").decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of one token; None for one that has no text."""
        return None if self._tokenizer is None else self._tokenizer.bytes_of(token_id)

    def _encode(
        self,
        text: str,
        where: Place,
        limits: Limits,
        add_special: bool,
        *,
        is_rendered: bool = False,
        beside: Sequence[str | Place] = (),
    ) -> Sequence[int]:
        """Token ids of one text. ContextLengthExceeded if it is far too long. `beside`: see prompt_too_long."""
        if self._tokenizer is None:
            refuse(where, "this model has no tokenizer: got text, expected token ids")

        shown = text.replace(MARK, "") if is_rendered else text
        least = self._tokenizer.least_tokens(shown)  # tokenising a long text would take seconds
        if limits.context_length is not None and least > limits.context_length:
            fault = (where, *beside, f" has {len(shown)} characters, at least {least} tokens")
            raise too_long(where, fault, limits)

        ids = _ids_of(self._tokenizer, text, limits.longest_prompt, add_special, is_rendered=is_rendered)
        if ids is None:
            raise prompt_too_long(where, len(shown), limits, beside)
        return ids

    def _stops(self, ask: Ask, known: dict[tuple[str, ...], StopSet]) -> StopSet:
        if ask.stops and self._tokenizer is None:
            refuse(STOPS, "this model has no tokenizer; use ", STOP_TOKEN_IDS)
        if ask.stops not in known:
            known[ask.stops] = StopSet(ask.stops)
        return known[ask.stops]

    def _sampling(self, ask: Ask, limits: Limits, grammar: str) -> SamplingParams:
        """The rules that all prompts share. `prompts` sets `max_tokens`."""
        stop_token_ids = tuple(dict.fromkeys(ask.stop_token_ids))
        for token_id in stop_token_ids:
            if limits.vocab_size is not None and token_id >= limits.vocab_size:
                refuse(STOP_TOKEN_IDS, f"got {token_id}, expected ids below the vocabulary size {limits.vocab_size}")

        names = ("temperature", "top_k", "top_p", "min_p", "seed")
        asked = {name: value for name in names if (value := getattr(ask.sampling, name)) is not None}
        params = replace(
            self._defaults,
            **{"seed": secrets.randbits(63), **asked, "top_k": max(0, asked.get("top_k", self._defaults.top_k))},
            min_tokens=ask.min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ask.ignore_eos,
            grammar=grammar_name(grammar),
        )
        if grammar:
            self._check_grammar(params, _place_of_grammar(ask))
        rules = rules_of(ask.sampling, params, self._tokenizer, limits.vocab_size)
        logprobs = None if ask.scores is None else LogprobsAsked(ask.scores, self._has_processed_logprobs)
        return replace(params, rules=rules, logprobs=logprobs)

    def _check_grammar(self, params: SamplingParams, where: Place) -> None:
        """Refuses a grammar if this model cannot follow any. `where`: what asks for it."""
        if self._tokenizer is None:
            refuse(where, "this model has no tokenizer, so its answers follow no grammar")
        if not params.eos_token_ids:
            refuse(where, "this model has no EOS token, with which an answer in a grammar ends")


def _place_of_grammar(ask: Ask) -> Place:
    """What asks for the grammar of the answer: a shape, a budget, a choice of tools, or the first strict tool."""
    prompt = ask.prompts[0]
    if ask.shape is not None or not isinstance(prompt, Conversation):
        return SHAPE
    if prompt.reasoning_tokens is not None:
        return REASONING_TOKENS
    if prompt.choice != "auto":
        return CHOICE
    return (*TOOLS, [tool.strict for tool in prompt.tools].index(True), "strict")


def _ids_of(
    tokenizer: TextTokenizer, text: str, most: int | None, add_special: bool, *, is_rendered: bool
) -> list[int] | None:
    """Token ids of a text; None once more than `most` have been read. `is_rendered`: it may have marks."""
    if is_rendered:
        return tokenizer.encode_rendered(text, most, add_special=add_special)
    return (tokenizer.encode_prompt if add_special else tokenizer.encode_plain)(text, most)


def _check_numbers(num_choices: int, num_prompts: int, limits: Limits) -> None:
    """Fault if no worker runs so many choices at once, or if all of them together hold fewer prompts."""
    if limits.max_choices is not None and num_choices > limits.max_choices:
        what = f"got {num_choices}, expected at most {limits.max_choices}, the requests a worker runs at once"
        refuse(NUM_CHOICES, what)

    most = limits.prompts_at_once(num_choices)
    if most is not None and num_prompts > most:
        share = f" of {num_choices} choices each" if num_choices > 1 else ""
        what = f"got {num_prompts} prompts{share}, expected at most {most}, which the workers run and let wait together"
        refuse(PROMPTS, what)


def _num_tokens(ask: Ask, position: int, ids: Sequence[int], limits: Limits, beside: tuple[str | Place, ...]) -> int:
    """Tokens of a choice of this prompt, at most. Fault if the prompt does not fit what is asked for. `beside`: what a
    sentence about its length also names."""
    where = (*PROMPTS, position)
    check_ids(ids, where, limits)
    if (scores := ask.prompt_scores) is not None and scores.start >= len(ids):
        refuse(PROMPT_SCORES, f"got {scores.start}, expected less than the {len(ids)} tokens of ", where)

    num_tokens = max_tokens(len(ids), ask.max_tokens, ask.default_tokens, ask.num_choices, where, limits, beside)
    if ask.min_tokens > num_tokens:
        refuse(MIN_TOKENS, f"got {ask.min_tokens}, expected at most ", MAX_TOKENS, f", which is {num_tokens}")
    return num_tokens


def _eos_token_ids(basics: ModelBasics, tokenizer: TextTokenizer | None) -> tuple[int, ...]:
    """The tokens that end a choice: the EOS of the configuration and that of the tokenizer, which only the chat format
    may use. Leaves out ids outside the vocabulary."""
    own = () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
    both = dict.fromkeys((*(basics.eos_token_ids or ()), *own))
    return tuple(token_id for token_id in both if basics.vocab_size is None or token_id < basics.vocab_size)
