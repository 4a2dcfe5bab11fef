"""From a completion or a chat to what it asks for, and how the client writes each place of that."""

from dataclasses import fields

from gateway.dialects.openai.fields import (
    DEFAULT_COMPLETION_TOKENS,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from gateway.dialects.shared.grammar_fields import only_grammar
from gateway.words.places import (
    FIRST_PROMPT,
    MAX_TOKENS,
    MIN_TOKENS,
    NUM_CHOICES,
    PROMPT_SCORES,
    PROMPTS,
    SAMPLING,
    STOP_TOKEN_IDS,
    STOPS,
    TEMPLATE,
    VARIABLES,
    Origins,
    field,
)
from gateway.words.request import Ask, Conversation, PromptIds, Prompts, PromptScores, PromptText, Sampling, Turn
from protocol.errors import BadRequest

NAMES: Origins = {
    **{(*SAMPLING, each.name): field(each.name) for each in fields(Sampling)},
    NUM_CHOICES: field("n"),
    MAX_TOKENS: field("max_tokens"),
    MIN_TOKENS: field("min_tokens"),
    STOPS: field("stop"),
    STOP_TOKEN_IDS: field("stop_token_ids"),
    PROMPT_SCORES: field("prompt_logprobs"),
}
OF_COMPLETIONS: Origins = {**NAMES, PROMPTS: field("prompt")}
OF_CHATS: Origins = {
    **NAMES,
    PROMPTS: field("messages"),
    FIRST_PROMPT: field("messages"),
    TEMPLATE: field("chat_template"),
    VARIABLES: field("chat_template_kwargs"),
}


def ask_of_completion(request: CompletionRequest) -> Ask:
    """What the client asks for. BadRequest for two grammars."""
    add_special = request.add_special_tokens is not False
    prompts = [
        PromptText(prompt, add_special) if isinstance(prompt, str) else PromptIds(prompt) for prompt in request.prompts
    ]
    origins = OF_COMPLETIONS if len(prompts) > 1 else {**OF_COMPLETIONS, FIRST_PROMPT: field("prompt")}
    if request.prompt_logprobs is None:
        origins = {**origins, PROMPT_SCORES: field("echo")}

    lists = (request.prompt_logprobs, request.logprobs if request.echo else None)
    told = [count for count in lists if count is not None]  # each choice has all these lists
    scores = PromptScores(max(told), 0, request.num_choices * sum(1 + count for count in told)) if told else None
    return _ask(request, prompts, origins, DEFAULT_COMPLETION_TOKENS, request.logprobs, scores)


def ask_of_chat(request: ChatRequest) -> Ask:
    """What the client asks for. BadRequest for two grammars, and for `top_logprobs` without `logprobs`."""
    if request.top_logprobs and not request.logprobs:
        raise BadRequest(
            f"top_logprobs: got {request.top_logprobs} without logprobs, expected it only beside logprobs: true",
            param="top_logprobs",
        )
    effort = {} if request.reasoning_effort is None else {"reasoning_effort": request.reasoning_effort}
    conversation = Conversation(
        [turn_of(message) for message in request.messages],
        request.chat_template,
        effort | (request.chat_template_kwargs or {}),
        request.add_special_tokens is True,
    )
    num_top = request.prompt_logprobs
    prompt_scores = None if num_top is None else PromptScores(num_top, 0, 1 + num_top)
    scores = (request.top_logprobs or 0) if request.logprobs else None
    return _ask(request, (conversation,), OF_CHATS, None, scores, prompt_scores)


def turn_of(message: ChatMessage) -> Turn:
    """One message. Fields that only chat templates know stay as they are."""
    content = message.content
    if isinstance(content, list):
        parts: tuple[str, ...] | None = tuple(part.text for part in content)
    else:
        parts = None if content is None else (content,)
    return Turn(message.role, parts, message.model_extra or {})


def _ask(
    request: GenerationRequest,
    prompts: Prompts,
    origins: Origins,
    default_tokens: int | None,
    scores: int | None,
    prompt_scores: PromptScores | None,
) -> Ask:
    """The Ask of prompts. What is not given here has the same fields in completions and chats."""
    max_tokens = request.max_tokens
    if request.max_completion_tokens:
        max_tokens, origins = request.max_completion_tokens, {**origins, MAX_TOKENS: field("max_completion_tokens")}
    asked = only_grammar(request.grammars())
    return Ask(
        prompts=prompts,
        origins=origins if asked is None else {**origins, **asked.origins()},
        model=request.model,
        num_choices=request.num_choices,
        sampling=request.sampling(request.seed, request.allowed_token_ids, request.bad_words or ()),
        max_tokens=max_tokens,
        default_tokens=default_tokens,
        min_tokens=request.min_tokens or 0,
        stops=request.stops,
        stop_token_ids=request.stop_token_ids or (),
        ignore_eos=request.ignore_eos is True,
        shape=None if asked is None else asked.grammar,
        scores=scores,
        prompt_scores=prompt_scores,
        echo=request.echo is True,
        keep_special=request.skip_special_tokens is False,
        cache_salt=request.cache_salt or "",
        priority=request.priority or 0,
        timeline=request.timeline,
    )
