"""The routes of the gateway and what they answer; every error has the same shape.

Hands bodies to json_body and schemas, then to translate, generation and answering. What it does not know: the
messages of workers.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse

from gateway.admission import Admission
from gateway.answering import StreamedAnswer, answer_whole, wants_timeline
from gateway.control import Control
from gateway.detokenizer import Detokenizer, NoText
from gateway.fault_guard import FaultGuard
from gateway.generation import Generation
from gateway.http_errors import error_response, json_response, status_object
from gateway.json_body import check_content, parse_json, read_body
from gateway.limits import Limits, check_list
from gateway.membership import Member
from gateway.metrics import Metrics
from gateway.openapi import NOT_FOUND, add_schemas, body_of, errors, generation_responses, text_response
from gateway.request_id import RequestIdMiddleware, request_id_of
from gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest, check_counts, parse
from gateway.sse import ChunkWriter, ResponseHead
from gateway.tokenizer import TextTokenizer
from gateway.translate import Job, TextRules, Translator
from gateway.unsupported import refuse_unsupported
from gateway.whole_answer import WholeAnswer
from protocol.errors import BadRequest, BatonError, InternalError, Unavailable
from runtime.clock import Clock
from runtime.log import get_log
from runtime.settings import HttpLimits

LONG_BODY_BYTES = 16 * 1024  # a longer one is parsed and tokenised in a thread
MAX_PATH_SHOWN = 200  # characters
R = TypeVar("R", bound=GenerationRequest)
log = get_log("gateway.http")


@dataclass(frozen=True)
class Service:
    """Everything that routes need."""

    served_name: str
    control: Control
    translator: Translator
    tokenizer: TextTokenizer | None
    metrics: Metrics
    clock: Clock
    model_limits: Limits  # of the model folder and the settings; workers add theirs
    started_at: int  # seconds since 1970
    http_limits: HttpLimits
    admission: Admission
    one_long_body: asyncio.Lock = field(default_factory=asyncio.Lock)  # parsed at a time: parsing lets nothing else run

    @property
    def limits(self) -> Limits:
        """The model's limits and those of the workers that are there now."""
        return merged(self.model_limits, self.control.limits)

    def new_detokenizer(self, prompt_ids: Sequence[int], skip_special: bool) -> Detokenizer:
        """For one choice of this prompt."""
        return NoText() if self.tokenizer is None else self.tokenizer.detokenizer(prompt_ids, skip_special)


def merged(model: Limits, workers: Limits) -> Limits:
    """The workers' limits, none above the model's; the workers know the vocabulary better."""
    known = [length for length in (model.context_length, workers.context_length) if length is not None]
    return Limits(
        context_length=min(known, default=None),
        vocab_size=workers.vocab_size if workers.vocab_size is not None else model.vocab_size,
        pool_tokens=workers.pool_tokens,
        prefill_pool_tokens=workers.prefill_pool_tokens,
        page_size=workers.page_size,
        prefill_page_size=workers.prefill_page_size,
        max_choices=workers.max_choices,
    )


def build_app(service: Service) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(FaultGuard, count=service.metrics.requests.labels(InternalError.code).inc)
    app.add_middleware(RequestIdMiddleware, count=service.metrics.count_response)
    _add_error_handlers(app, service)
    _add_generation(app, service)
    _add_status(app, service)
    return app


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    @app.exception_handler(BatonError)
    async def ours(request: Request, error: BatonError) -> Response:
        if request.method == "POST" and request.url.path.startswith("/v1/"):
            service.metrics.requests.labels(error.code).inc()
            fields = {"x_request_id": request_id_of(request), "code": error.code}
            if isinstance(error, BadRequest):  # its message may quote the client
                log.debug("request refused", **fields, param=error.param or "")
            else:
                log.info("request failed", **fields, why=error.message)
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {request.url.path[:MAX_PATH_SHOWN]}"
        message = f"{error.detail}: {place}" if error.status_code < 408 else error.detail
        response = json_response(status_object(error.status_code, message), error.status_code)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ClientDisconnect)
    async def client_left(_request: Request, _error: ClientDisconnect) -> Response:
        service.metrics.requests.labels("cancelled").inc()
        return Response(status_code=499)  # nobody reads it


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/completions",
        openapi_extra=body_of(CompletionRequest),
        responses=generation_responses(),
        response_class=Response,
    )
    async def completions(request: Request) -> Response:
        """Continues a prompt: text, token ids, or a list of either."""
        return await _generation(service, request, CompletionRequest, service.translator.completion_prompts)

    @app.post(
        "/v1/chat/completions",
        openapi_extra=body_of(ChatRequest),
        responses=generation_responses(),
        response_class=Response,
    )
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        return await _generation(
            service, request, ChatRequest, lambda parsed, limits: [service.translator.chat_prompt(parsed, limits)]
        )


async def _generation(
    service: Service, request: Request, kind: type[R], tokenise: Callable[[R, Limits], list[list[int]]]
) -> Response:
    """The answer of a request that there is room for. What it has sent counts until it is tokens."""
    received_at = service.clock.now()
    check_content(request)
    with service.admission.reading() as read:
        raw = await read_body(request, read)
        service.admission.check()
        is_long = len(raw) > LONG_BODY_BYTES
        parsed = await _parsed(kind, raw, service) if is_long else _checked(kind, raw, service)
        del raw
        service.translator.check_name(parsed.model)
        with service.admission.entering(parsed.num_choices * parsed.num_prompts):
            prepare = partial(_prepared, service.translator, parsed, tokenise, service.limits)
            rules, jobs = await asyncio.to_thread(prepare) if is_long else prepare()
            generation = _started(service, request, parsed, rules, jobs, received_at)
    return await _answer(service, request, parsed, generation)


async def _parsed(kind: type[R], raw: bytes, service: Service) -> R:
    """A long body: other clients' tokens must not wait for it."""
    async with service.one_long_body:
        return await asyncio.to_thread(_checked, kind, raw, service)


def _checked(kind: type[R], raw: bytes, service: Service) -> R:
    """All that can be said of a request before it is tokens."""
    body = parse_json(raw)
    if isinstance(body, dict):
        refuse_unsupported(body)
        check_list(body.get("prompt"), service.limits)
    parsed = parse(kind, body)
    check_counts(parsed, service.http_limits)
    return parsed


def _prepared(
    translator: Translator, parsed: R, tokenise: Callable[[R, Limits], list[list[int]]], limits: Limits
) -> tuple[TextRules, list[Job]]:
    """What workers are asked for, and what happens to the text that comes back."""
    prompts = tokenise(parsed, limits)
    return translator.text_rules(parsed), translator.jobs(parsed, prompts, limits)


def _started(
    service: Service,
    request: Request,
    parsed: GenerationRequest,
    rules: TextRules,
    jobs: list[Job],
    received_at: float,
) -> Generation:
    """Its prompts assigned."""
    response_id = f"{'chatcmpl' if isinstance(parsed, ChatRequest) else 'cmpl'}-{secrets.token_hex(16)}"
    generation = Generation(
        response_id, jobs, rules, service.new_detokenizer, service.control, service.clock, service.metrics
    )
    generation.start(received_at, wants_timeline(request, parsed.timeline), request_id_of(request))
    return generation


async def _answer(service: Service, request: Request, parsed: GenerationRequest, generation: Generation) -> Response:
    """Streamed or whole."""
    created, is_chat = int(datetime.now(UTC).timestamp()), isinstance(parsed, ChatRequest)
    head = ResponseHead(generation.response_id, created, service.served_name, is_chat, parsed.return_token_ids is True)
    if not parsed.stream:
        answer = WholeAnswer(head, generation.num_choices)
        return await answer_whole(generation, answer, request.receive)
    options = parsed.stream_options
    include_usage = options is not None and options.include_usage is True
    continuous = options is not None and options.continuous_usage_stats is True
    return StreamedAnswer(generation, ChunkWriter(head, include_usage, continuous), include_usage)


def _add_status(app: FastAPI, service: Service) -> None:
    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def root() -> Response:
        return PlainTextResponse(
            f"Baton serves {service.served_name}: POST /v1/completions or /v1/chat/completions; "
            f"see /health, /workers, /metrics, /openapi.json\n"
        )

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=errors())
    async def health() -> Response:
        """200 when requests can be served: a prefill and a decode worker, or a unified one, are ready."""
        missing = service.control.membership.missing
        if missing is None:
            return json_response({"status": "ok"})
        raise Unavailable(missing)

    @app.get("/v1/models/", include_in_schema=False)  # else a model without a name
    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models", responses=errors())
    async def models() -> Response:
        """The one model that is served."""
        return json_response({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{name:path}", responses=errors(NOT_FOUND))
    async def model(name: str) -> Response:
        """One model by its name."""
        service.translator.check_name(name)
        return json_response(_model(service))

    @app.get("/workers", responses=errors())
    async def workers() -> Response:
        """The workers that serve, their load and their page ledger."""
        now = service.clock.now()
        return json_response([worker_row(member, now) for member in service.control.membership.members])

    @app.get("/metrics", responses=text_response(), response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/flush_cache", operation_id="flush_cache", responses=errors())
    @app.post("/reset_prefix_cache", operation_id="reset_prefix_cache", responses=errors())
    async def flush_cache() -> Response:
        """Benchmarks call this before a run. No prefix is cached, so there is nothing to drop."""
        return json_response({"status": "ok"})

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return json_response(add_schemas(app.openapi()))


def worker_row(member: Member, now: float) -> dict[str, Any]:
    """What `/workers` says of one worker."""
    registered, stats = member.registered, member.stats
    return {
        "id": member.key.worker_id,
        "role": str(member.role),
        "pid": registered.pid,
        "state": "ready",  # whoever cannot serve yet, or no longer, is no member
        "instance": str(member.key.instance),  # above 2**53: JSON readers would round it
        "host": registered.host,
        "peer": registered.address.peer,
        "data": registered.address.data,
        "kv_pages": asdict(stats.kv_pages),
        "running": stats.running,
        "waiting": stats.waiting,
        "queued_prompt_tokens": stats.queued_prompt_tokens,
        "page_size": registered.layout.page_size,
        "transfer": stats.transfer,
        "max_running_requests": registered.max_running_requests,
        "max_total_tokens": registered.max_total_tokens,
        "context_length": registered.context_length,
        "launch_age_s": round(member.launch_age_s, 3),
        "heartbeat_age_s": round(now - member.last_seen, 3),
    }


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.served_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "baton",
        "max_model_len": service.limits.context_length,
    }
