"""POST /tokenize and /detokenize, as vLLM has them: what a prompt would be as tokens, and the text of tokens."""

from functools import partial

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from gateway.dialects.openai.read import OF_COMPLETIONS, conversation_of, origins_of
from gateway.dialects.openai.tokenize_fields import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    parse_detokenize,
    parse_tokenize,
)
from gateway.dialects.shared.documents import REF, Responses, body_of, errors
from gateway.serving.respond import ECHO_WORK
from gateway.serving.service import Service
from gateway.serving.unattended import answer_alone
from gateway.words.places import FIRST_PROMPT, field
from gateway.words.request import Ask, PromptText


def add_tokenizing(app: FastAPI, service: Service) -> None:
    """Adds the two routes."""

    @app.post(
        "/tokenize",
        openapi_extra=body_of(TokenizeRequest, {"prompt": "Once upon a time"}),
        responses=_responses(Tokenized),
        response_class=Response,
    )
    async def tokenize(request: Request) -> Response:
        """The tokens that a prompt or a chat would have."""
        return await answer_alone(service, request, parse_tokenize, partial(_tokenized, service))

    @app.post(
        "/detokenize",
        openapi_extra=body_of(DetokenizeRequest, {"tokens": [1, 2, 3]}),
        responses=_responses(Detokenized),
        response_class=Response,
    )
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        told = partial(_detokenized, service)
        return await answer_alone(service, request, parse_detokenize, told, ECHO_WORK)


def ask_of_tokens(request: TokenizeRequest) -> Ask:
    """The prompt whose tokens are asked for."""
    if request.messages is None:
        prompt = PromptText(request.prompt or "", request.add_special_tokens is not False)
        return Ask([prompt], {**OF_COMPLETIONS, FIRST_PROMPT: field("prompt")}, request.model)
    conversation = conversation_of(
        request,
        request.messages,
        add_special=request.add_special_tokens is True,
        opens_answer=request.add_generation_prompt is not False,
    )
    return Ask((conversation,), origins_of(request.messages, conversation), request.model)


def _tokenized(service: Service, request: TokenizeRequest) -> bytes:
    ids = service.translator.tokenize(ask_of_tokens(request))
    names = list(map(service.translator.token_name, ids)) if request.return_token_strs else None
    limits = service.control.limits
    told = {"count": len(ids), "max_model_len": limits.context_length, "tokens": ids, "token_strs": names}
    return orjson.dumps(told)


def _detokenized(service: Service, request: DetokenizeRequest) -> bytes:
    return orjson.dumps({"prompt": service.translator.detokenize(request.tokens, service.control.limits)})


def _responses(whole: type[BaseModel]) -> Responses:
    content = {"application/json": {"schema": {"$ref": REF.format(model=whole.__name__)}}}
    return {200: {"description": "the whole answer", "content": content}, **errors(404, 415, 429)}
