"""OpenAI's API: POST /v1/completions and /v1/chat/completions."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import FastAPI, Request, Response

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, GenerationRequest, StreamOptions, parse
from gateway.dialects.openai.read import ask_of_chat, ask_of_completion
from gateway.dialects.openai.score_shapes import (
    ChatLogprobWriter,
    CompletionLogprobWriter,
    LogprobWriter,
    PromptWriter,
)
from gateway.dialects.openai.shapes import ChatCompletion, Completion
from gateway.dialects.openai.unsupported import refuse_unsupported
from gateway.dialects.openai.write import BodyWriter, EventWriter, Form, Head
from gateway.dialects.openai.write_chat import ChatForm
from gateway.dialects.openai.write_completion import CompletionForm
from gateway.dialects.shared.counts import check_counts
from gateway.dialects.shared.documents import body_of, generation_responses
from gateway.dialects.shared.json_body import check_list
from gateway.generation.generation import Generation
from gateway.serving.answering import StreamedAnswer, WholeAnswer
from gateway.serving.respond import respond
from gateway.serving.service import Service
from gateway.words.limits import Limits
from gateway.words.request import Ask
from gateway.words.strict_json import parse_json
from runtime.settings import HttpLimits

R = TypeVar("R", bound=GenerationRequest)


@dataclass(frozen=True)
class Route(Generic[R]):
    """What differs between the two routes: a body, what it asks for, and how it is answered."""

    body: type[R]
    ask_of: Callable[[R], Ask]
    id_prefix: str
    form: Form
    logprob_writer: type[LogprobWriter]


COMPLETIONS = Route(CompletionRequest, ask_of_completion, "cmpl", CompletionForm(), CompletionLogprobWriter)
CHATS = Route(ChatRequest, ask_of_chat, "chatcmpl", ChatForm(), ChatLogprobWriter)


def add_generation(app: FastAPI, service: Service) -> None:
    """Adds the two routes that generate."""

    @app.post(
        "/v1/completions",
        openapi_extra=body_of(CompletionRequest, {"prompt": "Once upon a time", "max_tokens": 8}),
        responses=generation_responses(Completion),
        response_class=Response,
    )
    async def completions(request: Request) -> Response:
        """Continues a prompt: text, token ids, or a list of either."""
        return await respond(service, request, partial(openai_call, COMPLETIONS))

    @app.post(
        "/v1/chat/completions",
        openapi_extra=body_of(
            ChatRequest, {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8}
        ),
        responses=generation_responses(ChatCompletion),
        response_class=Response,
    )
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        return await respond(service, request, partial(openai_call, CHATS))


@dataclass(frozen=True)
class OpenAiCall:
    """A completion or a chat completion."""

    route: Route[Any]
    parsed: GenerationRequest
    asks: Sequence[Ask]
    response_id: str

    @property
    def ids(self) -> Mapping[str, range]:
        """See Call."""
        return {self.response_id: range(self.asks[0].num_choices * len(self.asks[0].prompts))}

    def answer(self, service: Service, generation: Generation) -> Response:
        """See Call."""
        parsed, bytes_of = self.parsed, service.translator.token_bytes
        logprobs = prompt_logprobs = None
        if (num_top := self.asks[0].scores) is not None:
            logprobs = self.route.logprob_writer(bytes_of, parsed.return_tokens_as_token_ids is True, num_top)
        if parsed.prompt_logprobs is not None:
            prompt_logprobs = PromptWriter(parsed.prompt_logprobs, bytes_of)
        head = Head(
            generation.response_id,
            int(datetime.now(UTC).timestamp()),
            service.names.first,
            self.route.form,
            parsed.return_token_ids is True,
            logprobs,
            prompt_logprobs,
        )

        if not parsed.stream:
            return WholeAnswer(generation, BodyWriter(head), service.long_answers)
        options = parsed.stream_options or StreamOptions()
        writer = EventWriter(head, options.include_usage is True, options.continuous_usage_stats is True)
        return StreamedAnswer(generation, writer, service.long_answers)


def openai_call(route: Route[R], raw: bytes, limits: Limits, http_limits: HttpLimits) -> OpenAiCall:
    """All checks of a request that need no tokens. May run in a thread."""
    body = parse_json(raw)
    if isinstance(body, dict):
        refuse_unsupported(body, route.body)
        check_list(body.get("prompt"), limits, "prompt")
    parsed = parse(route.body, body)
    ask = route.ask_of(parsed)
    check_counts(ask, http_limits)
    return OpenAiCall(route, parsed, [ask], f"{route.id_prefix}-{secrets.token_hex(16)}")
