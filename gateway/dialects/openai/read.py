"""From a completion or a chat to what it asks for, and how the client writes each place of that."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace

from gateway.dialects.openai.conversation_fields import ChatMessage, ConversationFields
from gateway.dialects.openai.fields import (
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from gateway.dialects.openai.tool_fields import FunctionCall, FunctionFields, NamedTool
from gateway.dialects.shared.grammar_fields import only_grammar
from gateway.words.places import (
    CHOICE,
    FIRST_PROMPT,
    MAX_TOKENS,
    MIN_TOKENS,
    NUM_CHOICES,
    PROMPT_SCORES,
    PROMPTS,
    REASONING_TOKENS,
    SAMPLING,
    STOP_TOKEN_IDS,
    STOPS,
    TEMPLATE,
    TOOLS,
    TURNS,
    VARIABLES,
    Origins,
    field,
)
from gateway.words.request import (
    Ask,
    Call,
    Conversation,
    Named,
    Part,
    PromptIds,
    Prompts,
    PromptScores,
    PromptText,
    Reasoning,
    Result,
    Sampling,
    Text,
    Tool,
    Turn,
)
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
    TOOLS: field("tools"),
    CHOICE: field("tool_choice"),
    (*CHOICE, "name"): field("tool_choice.function.name"),
    REASONING_TOKENS: field("thinking_token_budget"),
}
RESULTS = ("tool", "function")  # roles whose messages are results of calls


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
    told = conversation_of(request, request.messages, add_special=request.add_special_tokens is True)
    budgets = {"thinking_token_budget": request.thinking_token_budget, "thinking_budget": request.thinking_budget}
    name, budget = next(((name, budget) for name, budget in budgets.items() if budget is not None), ("", None))
    conversation = replace(told, reasoning_tokens=budget)
    num_top = request.prompt_logprobs
    prompt_scores = None if num_top is None else PromptScores(num_top, 0, 1 + num_top)
    scores = (request.top_logprobs or 0) if request.logprobs else None
    origins = origins_of(request.messages, conversation)
    if budget is not None:
        origins = {**origins, REASONING_TOKENS: field(name)}
    return _ask(request, (conversation,), origins, None, scores, prompt_scores)


def conversation_of(
    request: ConversationFields, messages: Sequence[ChatMessage], *, add_special: bool, opens_answer: bool = True
) -> Conversation:
    """The conversation of a chat. `add_special`, `opens_answer`: see Conversation."""
    effort = {} if request.reasoning_effort is None else {"reasoning_effort": request.reasoning_effort}
    choice = request.tool_choice
    return Conversation(
        [turn_of(message) for message in messages],
        request.chat_template,
        effort | (request.chat_template_kwargs or {}),
        add_special,
        [_tool(tool.function) for tool in request.tools or ()],
        Named(choice.function.name) if isinstance(choice, NamedTool) else choice or "auto",
        request.parallel_tool_calls is not False,
        opens_answer,
    )


def _tool(function: FunctionFields) -> Tool:
    return Tool(function.name, function.description, function.parameters, function.strict is True)


def turn_of(message: ChatMessage) -> Turn:
    """One message. Fields that only chat templates know stay as they are."""
    content, more = message.content, message.model_extra or {}
    if isinstance(content, list):
        texts = [part.text for part in content] or [""]
    else:
        texts = [] if content is None else [content]

    if message.role in RESULTS:
        return Turn("tool", (Result(message.tool_call_id or "", "".join(texts)),), more)
    thoughts = message.reasoning_content or message.reasoning
    parts: list[Part] = [Reasoning(thoughts)] if thoughts else []
    parts += map(Text, texts)
    parts += (_call(call.id or "", call.function) for call in message.tool_calls or ())
    if message.function_call is not None:
        parts.append(_call("", message.function_call))
    return Turn(message.role, tuple(parts), more)


def _call(call_id: str, function: FunctionCall) -> Call:
    given = function.arguments
    text = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    return Call(call_id, function.name, text)


def origins_of(messages: Sequence[ChatMessage], conversation: Conversation) -> Origins:
    """How a chat writes the places of its conversation, whose turns are its messages."""
    has_calls = any(message.tool_calls or message.function_call or message.role in RESULTS for message in messages)
    if not has_calls and not conversation.tools:
        return OF_CHATS

    origins = dict(OF_CHATS)
    for number in range(len(conversation.tools)):
        path = f"tools.{number}.function"
        origins[(*TOOLS, number, "name")] = field(f"{path}.name")
        origins[(*TOOLS, number, "schema")] = field(f"{path}.parameters")
        origins[(*TOOLS, number, "strict")] = field(f"{path}.strict")

    for number, (message, turn) in enumerate(zip(messages, conversation.turns, strict=True)):
        calls = [f"tool_calls.{index}.function" for index in range(len(message.tool_calls or ()))]
        paths = iter([*calls, "function_call"])
        for position, part in enumerate(turn.parts):
            where = (*TURNS, number, "parts", position)
            if isinstance(part, Result):
                origins[(*where, "call_id")] = field(f"messages.{number}.tool_call_id")
            elif isinstance(part, Call):
                origins[where] = field(path := f"messages.{number}.{next(paths)}")
                origins[(*where, "name")] = field(f"{path}.name")
                origins[(*where, "arguments")] = field(f"{path}.arguments")
    return origins


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
