"""The ASGI application: what wraps the routes, how errors are answered, and the routes that generate nothing.

Those report what is served and how it runs. Routers in front of the gateway read `/server_info` and `/model_info`,
under SGLang's names, old and new. service.py has the routes that generate.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.app.docs_page import DOCS_HEADERS, docs_page
from gateway.app.openapi import add_schemas
from gateway.app.openapi_rules import bounds_of
from gateway.dialects.openai.routes import add_generation
from gateway.dialects.openai.tokenize_routes import add_tokenizing
from gateway.dialects.sglang.routes import add_native
from gateway.dialects.sglang.write import WEIGHT_VERSION
from gateway.dialects.shared.documents import errors, text_response
from gateway.http.errors import error_response, json_response, status_response
from gateway.http.protocol import HEADER, Gate, RequestIdMiddleware, request_id_of
from gateway.routing.members import Member, Stage
from gateway.serving.service import Service
from gateway.words.near_names import near_path
from protocol.errors import BadRequest, BatonError, InternalError, Unavailable
from protocol.messages_gateway import Role
from runtime.installation import baton_version
from runtime.log import get_log

MAX_PATH_SHOWN = 200  # characters
GENERATING = ("/v1/", "/generate")  # the metrics count requests to these paths
NAME = "One of the names in /v1/models, or what was typed for --model."
log = get_log("gateway.http")


def build_app(service: Service) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    # Each of these wraps those above it.
    count_fault = service.metrics.requests.labels(InternalError.code).inc
    app.add_middleware(Gate, limits=service.http_limits, keys=service.api_keys, count_fault=count_fault)
    if service.allowed_origins:
        app.add_middleware(  # outside of the gate: a browser asks without a key whether it may send one
            CORSMiddleware,
            allow_origins=service.allowed_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER],
        )
    app.add_middleware(RequestIdMiddleware, count=service.metrics.count_response)

    _add_error_handlers(app, service)
    add_generation(app, service)
    add_native(app, service)
    add_tokenizing(app, service)
    _add_health(app, service)
    _add_models(app, service)
    _add_facts(app, service)
    return app


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    @app.exception_handler(BatonError)
    async def ours(request: Request, error: BatonError) -> Response:
        if request.method in ("POST", "PUT") and request.url.path.startswith(GENERATING):
            service.metrics.requests.labels(error.code).inc()
            fields = {"x_request_id": request_id_of(request.scope), "code": error.code}
            if isinstance(error, BadRequest):  # its message may quote the client
                log.debug("request refused", **fields, param=error.param or "")
            else:
                log.info("request failed", **fields, why=error.message)
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        asked_route = f"{request.method} {request.url.path[:MAX_PATH_SHOWN]}"
        message = f"{error.detail}: {asked_route}" if error.status_code < 408 else error.detail
        if error.status_code == 404:
            paths = [route.path for route in app.routes if isinstance(route, Route)]
            meant = near_path(request.url.path, paths)
            message += f"; the route is {meant}" if meant else ""
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


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return PlainTextResponse(
            f"Baton serves {service.names.first}: POST /v1/completions, /v1/chat/completions or /generate; "
            f"see /health, /workers, /metrics, /docs, /openapi.json\n"
        )

    @app.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
    @app.get("/health", responses=errors())
    async def health() -> Response:
        """200 when requests can be served: a prefill and a decode worker, or a unified one, are ready."""
        missing = service.control.membership.missing
        if missing is None:
            troubles = service.control.presence.troubles(service.clock.now())
            return json_response({"status": "ok", **({"not_running": troubles} if troubles else {})})
        raise Unavailable(service.control.presence.describe(missing, service.clock.now()))

    @app.get("/workers", responses=errors())
    async def workers() -> Response:
        """The workers that serve, their load and their page ledger."""
        now = service.clock.now()
        return json_response([worker_row(member, now) for member in service.control.membership.members])

    @app.get("/metrics", responses=text_response(), response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics in Prometheus's text format."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/flush_cache", operation_id="flush_cache", responses=errors())
    @app.post("/reset_prefix_cache", operation_id="reset_prefix_cache", responses=errors())
    async def flush_cache() -> Response:
        """Workers forget the KV of earlier prompts. What runs goes on, and adds nothing to the caches."""
        await service.control.flush_caches()
        return json_response({"status": "ok"})


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", responses=errors())
    async def models() -> Response:
        """The model, once under each of its names."""
        data = [_model(service, name) for name in service.names.served]
        return json_response({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", responses=errors(404))
    async def model(name: Annotated[str, Path(description=NAME, examples=[service.names.first])]) -> Response:
        """The model by one of its names."""
        service.names.check(name)
        return json_response(_model(service, name if name in service.names.served else service.names.first))


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/version", responses=errors())
    async def version() -> Response:
        """Baton's own version."""
        return json_response({"version": baton_version()})

    @app.get("/server_info", operation_id="server_info", responses=errors())
    @app.get("/get_server_info", operation_id="get_server_info", responses=errors())
    async def server_info() -> Response:
        """The server as routers and benchmarks see it: gateway and workers together."""
        return json_response(_server_info(service))

    @app.get("/model_info", operation_id="model_info", responses=errors())
    @app.get("/get_model_info", operation_id="get_model_info", responses=errors())
    async def model_info() -> Response:
        """The model's properties that routers ask for."""
        return json_response(_model_info(service))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return json_response(add_schemas(app.openapi(), bounds_of(service)))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = docs_page(add_schemas(app.openapi(), bounds_of(service)))
        return Response(page, media_type="text/html; charset=utf-8", headers=DOCS_HEADERS)


def worker_row(member: Member, now: float) -> dict[str, Any]:
    """Describes one worker for `/workers`."""
    registered, stats = member.registered, member.stats
    return {
        "id": member.key.worker_id,
        "role": str(member.role),
        "pid": registered.pid,
        "state": "ready" if member.stage is Stage.READY else "leaving",  # one that is lost is no member
        "instance": str(member.key.instance),  # as text: it exceeds 2**53, which JSON readers round
        "host": registered.host,
        "device": registered.device,
        "peer": registered.address.peer,
        "data": registered.address.data,
        "kv_pages": asdict(stats.kv_pages),
        "host_pages": asdict(stats.host_pages),
        "place": None if member.place is None else asdict(member.place),
        "running": stats.running,
        "waiting": stats.waiting,
        "queued_prompt_tokens": stats.queued_prompt_tokens,
        "launches": stats.num_launches,
        "idle_launches": int(stats.counters.get("idle_launches", 0)),
        "page_size": registered.layout.page_size,
        "transfer": stats.transfer,
        "draft": None if registered.draft is None else asdict(registered.draft),
        "graphs": registered.graphs,
        "max_running_requests": registered.max_running_requests,
        "max_total_tokens": registered.max_total_tokens,
        "context_length": registered.context_length,
        "launch_age_s": round(member.launch_age_s, 3),
        "heartbeat_age_s": round(now - member.last_seen, 3),
    }


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "baton",
        "root": service.model,
        "parent": None,
        "max_model_len": service.control.limits.context_length,
    }


def _server_info(service: Service) -> dict[str, Any]:
    """Sums over decode and unified workers, since each request occupies one of them."""
    members = [member for member in service.control.membership.members if member.role is not Role.PREFILL]
    decodes = [member.registered for member in members]
    draft = next((decode.draft for decode in decodes if decode.draft is not None), None)
    return {
        "model_id": service.names.first,
        "served_model_name": service.names.first,
        "model_path": service.model,
        "tokenizer_path": service.texts,
        "version": baton_version(),
        "max_running_requests": sum(decode.max_running_requests for decode in decodes),
        "max_total_tokens": sum(decode.max_total_tokens for decode in decodes),
        "max_total_num_tokens": sum(decode.max_total_tokens for decode in decodes),
        "context_length": service.control.limits.context_length,
        "page_size": service.control.limits.page_size,
        "speculative_algorithm": draft and draft.algorithm,
        "speculative_draft_model_path": draft and draft.folder,
        "speculative_num_steps": draft and draft.num_steps,
        "tp_size": 1,
        "dp_size": 1,
        "disaggregation_mode": "null",  # to a router this is a plain server: the gateway pairs the workers
        "internal_states": [_internal_state(members)],  # benchmarks read the first one
    }


def _internal_state(decodes: Sequence[Member]) -> dict[str, Any]:
    """What SGLang's benchmarks ask for before and after a run.

    `avg_spec_accept_length`: tokens that a row gains in a launch with a draft: one of the target's own, and those kept.
    A launch proposes at the first position once for each row.
    """
    state: dict[str, Any] = {
        "effective_max_running_requests_per_dp": sum(decode.registered.max_running_requests for decode in decodes),
        "memory_usage": {"token_capacity": sum(decode.registered.max_total_tokens for decode in decodes)},
    }
    counters = [decode.stats.counters for decode in decodes]
    num_rows = sum(counts.get("spec_proposed_1", 0) for counts in counters)
    if num_rows:
        kept = sum(count for counts in counters for name, count in counts.items() if name.startswith("spec_accepted_"))
        state["avg_spec_accept_length"] = 1 + kept / num_rows
    return state


def _model_info(service: Service) -> dict[str, Any]:
    limits = service.control.limits
    return {
        "model_path": service.model,
        "tokenizer_path": service.texts,
        "served_model_name": service.names.first,
        "is_generation": True,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "preferred_sampling_params": None,
        "weight_version": WEIGHT_VERSION,
        "max_context_length": limits.context_length,
        "vocab_size": limits.vocab_size,
    }
