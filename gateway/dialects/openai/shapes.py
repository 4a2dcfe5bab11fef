"""The whole answers of completions and chats, as /openapi.json tells them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.dialects.shared.documents import Moment
from gateway.dialects.shared.sampling_fields import told


class CachedTokens(BaseModel):
    """How much of the prompt was not computed."""

    cached_tokens: Annotated[int, told("Prompt tokens whose KV workers had from earlier requests.", 0)]


class ReasoningTokens(BaseModel):
    """How much of the answer were thoughts."""

    reasoning_tokens: Annotated[int, told("Tokens of thoughts, without the markers around them.", 5)]


class Usage(BaseModel):
    """Tokens of a whole client request. A prompt counts once, whatever `n` is."""

    prompt_tokens: Annotated[int, told("Tokens of all prompts.", 4)]
    completion_tokens: Annotated[int, told("Tokens of all choices.", 8)]
    total_tokens: Annotated[int, told("The sum of both.", 12)]
    prompt_tokens_details: Annotated[CachedTokens, told("Details of the prompt's tokens.")]
    completion_tokens_details: Annotated[
        ReasoningTokens, told("Details of the answer's tokens, if it has thoughts.")
    ] = ReasoningTokens(reasoning_tokens=0)


class TextLogprobs(BaseModel):
    """Log-probabilities of a completion's tokens. The lists have an item for each token; -9999 is minus infinity."""

    tokens: Annotated[list[str], told("Their texts.", [" a", " fox"])]
    token_logprobs: Annotated[
        list[float | None],
        told("The natural logarithms of their probabilities; null for the first token of an echo.", [-0.25, -1.5]),
    ]
    top_logprobs: Annotated[
        list[dict[str, float] | None],
        told("The likeliest tokens at their places, and they themselves.", [{" a": -0.25}]),
    ]
    text_offset: Annotated[list[int], told("Characters of the text before each of them.", [0, 2])]


class PromptToken(BaseModel):
    """A token at a place of the prompt, as vLLM writes it."""

    logprob: Annotated[float, told("The natural logarithm of its probability; -9999 is minus infinity.", -0.25)]
    rank: Annotated[int, told("1: no token is likelier.", 1)]
    decoded_token: Annotated[str | None, told("Its text.", " fox")]


PromptPlaces = Annotated[
    list[dict[str, PromptToken] | None],
    told(
        "With `prompt_logprobs`: null for the first token, and tokens by their ids.",
        [None, {"314": {"logprob": -0.25, "rank": 1, "decoded_token": " fox"}}],
    ),
]


class TokenProbability(BaseModel):
    """One token at a place of a chat's answer."""

    token: Annotated[str, told("Its text.", " fox")]
    logprob: Annotated[float, told("The natural logarithm of its probability; -9999 is minus infinity.", -0.25)]
    bytes: Annotated[list[int] | None, told("Its bytes. A token may be a part of a character.", [32, 102, 111, 120])]


class ScoredPlace(TokenProbability):
    """One token of a chat's answer."""

    top_logprobs: Annotated[list[TokenProbability], told("The likeliest tokens at its place, likeliest first.")]


class ChatLogprobs(BaseModel):
    """Log-probabilities of the tokens of a chat's answer."""

    content: Annotated[list[ScoredPlace], told("One item for each token.")]
    refusal: Annotated[None, told("Always null.")]


class Choice(BaseModel):
    """What completions and chat have in common in a choice."""

    index: Annotated[int, told("The number of the choice. Choice c of prompt p has p * n + c.", 0)]
    finish_reason: Annotated[
        Literal["stop", "length", "tool_calls", "abort"],
        told(
            "stop: EOS, a stop token or a stop text. length: `max_tokens`, or the context is full. tool_calls: "
            "stop, in a chat's answer that calls tools. abort: another request has ended it."
        ),
    ]
    token_ids: Annotated[list[int], told("The choice's tokens, with `return_token_ids`.", [314, 7])] = []


class TextChoice(Choice):
    """One choice of a completion."""

    text: Annotated[str, told("What continues the prompt.", ", there was a fox.")]
    logprobs: Annotated[TextLogprobs | None, told("Those of the tokens, with `logprobs`; else null.", None)]
    prompt_logprobs: PromptPlaces = []


class CalledFunction(BaseModel):
    """The function of a call, and its arguments."""

    name: Annotated[str, told("The name of one of `tools`.", "weather")]
    arguments: Annotated[str, told("The text of a JSON object. It is cut if the answer is.", '{"city": "Oslo"}')]


class AnsweredCall(BaseModel):
    """A call of a tool."""

    id: Annotated[str, told("The id that the result names.", "call_1")]
    type: Annotated[Literal["function"], told("Always function.")]
    function: Annotated[CalledFunction, told("What is called.")]


class AnswerMessage(BaseModel):
    """The message of one choice of a chat."""

    role: Annotated[Literal["assistant"], told("Always assistant.")]
    content: Annotated[
        str | None, told("What the model says; null if it calls tools and says nothing.", "Once there was a fox.")
    ]
    reasoning_content: Annotated[str, told("The model's thoughts, if it has some.", "They want a story.")] = ""
    reasoning: Annotated[str, told("The same as `reasoning_content`.", "They want a story.")] = ""
    tool_calls: Annotated[list[AnsweredCall], told("The tools that the model calls, if it calls some.")] = []
    refusal: Annotated[None, told("Always null.")]
    annotations: Annotated[list[Any], Field(max_length=0), told("Always empty.", [])]


class ChatChoice(Choice):
    """One choice of a chat."""

    logprobs: Annotated[ChatLogprobs | None, told("Those of the tokens, with `logprobs`; else null.", None)]
    message: Annotated[AnswerMessage, told("What the model says.")]


class Answer(BaseModel):
    """What completions and chat have in common in an answer that is not streamed."""

    id: Annotated[str, told("The id of this answer.", "cmpl-83ad0f")]
    created: Annotated[int, told("Seconds since 1970.", 1767225600)]
    model: Annotated[str, told("The first name of the model.", "story")]
    usage: Annotated[Usage, told("Tokens of the whole request.")]
    timeline: Annotated[list[Moment], told("Where the time went, with `timeline`.")] = []


class Completion(Answer):
    """The answer to `POST /v1/completions`, if it is not streamed."""

    object: Annotated[Literal["text_completion"], told("Always text_completion.")]
    choices: Annotated[list[TextChoice], told("The choices, by index.")]


class ChatCompletion(Answer):
    """The answer to `POST /v1/chat/completions`, if it is not streamed."""

    object: Annotated[Literal["chat.completion"], told("Always chat.completion.")]
    prompt_logprobs: PromptPlaces = []
    choices: Annotated[list[ChatChoice], told("The choices, by index.")]
