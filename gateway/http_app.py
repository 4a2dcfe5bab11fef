"""The routes of the gateway and their answers. Every error has the same shape.

A body passes json_body, schemas and translate; generation and answering make the answer.
"""

import asyncio
import secrets
from datetime import UTC, datetime

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from gateway.answering import ChunkWriter, ResponseHead, StreamedAnswer, WholeAnswer, answer_whole, wants_timeline
from gateway.generation import Generation, Times
from gateway.http_errors import error_response, status_response
from gateway.json_body import check_content, parse_json, read_body
from gateway.limits import check_list
from gateway.middleware import (
    HEADER,
    ApiKeys,
    BodyLimits,
    FaultGuard,
    PlainRequests,
    RequestIdMiddleware,
    request_id_of,
)
from gateway.openapi import body_of, generation_responses
from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest, check_counts, parse, refuse_unsupported
from gateway.service import Service
from gateway.status_routes import add_status
from gateway.translate import Prompt
from protocol.errors import BadRequest, BatonError, InternalError
from runtime.log import get_log

LONG_BODY_BYTES = 16 * 1024  # a longer body is parsed and tokenised in a thread, one at a time
HUGE_BODY_BYTES = 256 * 1024  # a longer body is tokenised apart, so that shorter ones do not wait for it
MAX_PATH_SHOWN = 200  # characters
log = get_log("gateway.http")


def build_app(service: Service) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    # Each of these wraps those above it.
    app.add_middleware(PlainRequests)
    app.add_middleware(FaultGuard, count=service.metrics.requests.labels(InternalError.code).inc)
    if service.api_keys:
        app.add_middleware(ApiKeys, keys=service.api_keys)
    app.add_middleware(BodyLimits, limits=service.http_limits)
    if service.allowed_origins:
        app.add_middleware(  # outside of ApiKeys: a browser asks without a key whether it may send one
            CORSMiddleware,
            allow_origins=service.allowed_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER],
        )
    app.add_middleware(RequestIdMiddleware, count=service.metrics.count_response)

    _add_error_handlers(app, service)
    _add_generation(app, service)
    add_status(app, service)
    return app


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    @app.exception_handler(BatonError)
    async def ours(request: Request, error: BatonError) -> Response:
        if request.method == "POST" and request.url.path.startswith("/v1/"):
            service.metrics.requests.labels(error.code).inc()
            fields = {"x_request_id": request_id_of(request.scope), "code": error.code}
            if isinstance(error, BadRequest):  # its message may quote the client
                log.debug("request refused", **fields, param=error.param or "")
            else:
                log.info("request failed", **fields, why=error.message)
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {request.url.path[:MAX_PATH_SHOWN]}"
        message = f"{error.detail}: {place}" if error.status_code < 408 else error.detail
        if error.status_code in (408, 413):  # the body broke a bound while its route read it
            service.metrics.requests.labels("cancelled").inc()
        response = status_response(error.status_code, message, error.headers)
        if "GET" in response.headers.get("allow", "").split(", "):
            response.headers["allow"] += ", HEAD"
        return response

    @app.exception_handler(ClientDisconnect)
    async def client_left(_request: Request, _error: ClientDisconnect) -> Response:
        service.metrics.requests.labels("cancelled").inc()
        return Response(status_code=499)  # the client does not read it


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/completions",
        openapi_extra=body_of(CompletionRequest),
        responses=generation_responses(),
        response_class=Response,
    )
    async def completions(request: Request) -> Response:
        """Continues a prompt: text, token ids, or a list of either."""
        return await _generation(service, request, CompletionRequest)

    @app.post(
        "/v1/chat/completions",
        openapi_extra=body_of(ChatRequest),
        responses=generation_responses(),
        response_class=Response,
    )
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        return await _generation(service, request, ChatRequest)


async def _generation(service: Service, request: Request, kind: type[AnyRequest]) -> Response:
    """Answers a request if there is room for it. Its bytes count until they are tokens."""
    received_at = service.clock.now()
    check_content(request)
    with service.admission.reading() as read:
        raw = await read_body(request, read)
        service.admission.check()  # spares parsing a body that would be refused
        num_bytes = len(raw)
        is_long = num_bytes > LONG_BODY_BYTES
        parsed = await _parsed(kind, raw, service) if is_long else _checked(kind, raw, service)
        del raw

        service.names.check(parsed.model)
        with service.admission.entering(parsed.num_choices * parsed.num_prompts):
            translate = service.translator.prompts
            if is_long:
                async with service.one_huge_text if num_bytes > HUGE_BODY_BYTES else service.one_long_text:
                    prompts = await asyncio.to_thread(translate, parsed, service.limits)
            else:
                prompts = translate(parsed, service.limits)
            generation = await _started(service, request, parsed, prompts, received_at)
    return await _answer(service, request, parsed, generation)


async def _parsed(kind: type[AnyRequest], raw: bytes, service: Service) -> AnyRequest:
    """Parses a long body in a thread, so that other clients' tokens do not wait for it."""
    async with service.one_long_body:
        return await asyncio.to_thread(_checked, kind, raw, service)


def _checked(kind: type[AnyRequest], raw: bytes, service: Service) -> AnyRequest:
    """All checks of a request that need no tokens."""
    body = parse_json(raw)
    if isinstance(body, dict):
        refuse_unsupported(body)
        check_list(body.get("prompt"), service.limits)
    parsed = parse(kind, body)
    check_counts(parsed, service.http_limits)
    return parsed


async def _started(
    service: Service, request: Request, parsed: AnyRequest, prompts: list[Prompt], received_at: float
) -> Generation:
    """The generation, with its prompts assigned."""
    response_id = f"{'chatcmpl' if isinstance(parsed, ChatRequest) else 'cmpl'}-{secrets.token_hex(16)}"
    times = Times(service.clock, service.metrics, received_at, wants_timeline(request, parsed.timeline))
    dispatch, x_request_id = service.control.dispatch, request_id_of(request.scope)
    generation = Generation(response_id, prompts, service.new_detokenizer, dispatch, times, x_request_id)
    await generation.start()
    return generation


async def _answer(service: Service, request: Request, parsed: AnyRequest, generation: Generation) -> Response:
    """The response, streamed or whole."""
    created, is_chat = int(datetime.now(UTC).timestamp()), isinstance(parsed, ChatRequest)
    head = ResponseHead(generation.response_id, created, service.names.first, is_chat, parsed.return_token_ids is True)
    if not parsed.stream:
        answer = WholeAnswer(head, generation.num_choices)
        return await answer_whole(generation, answer, request.receive)
    options = parsed.stream_options
    include_usage = options is not None and options.include_usage is True
    continuous = options is not None and options.continuous_usage_stats is True
    return StreamedAnswer(generation, ChunkWriter(head, include_usage, continuous))
