"""Routes that report what is served and how it runs; they generate nothing.

Routers in front of the gateway read `/server_info` and `/model_info`, under SGLang's names, old and new.
"""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Response
from starlette.responses import PlainTextResponse

from gateway.http_errors import json_response
from gateway.membership import Member
from gateway.openapi import NOT_FOUND, add_schemas, errors, text_response
from gateway.service import Service
from protocol.errors import Unavailable
from protocol.messages_gateway import Role
from runtime.installation import baton_version


def add_status(app: FastAPI, service: Service) -> None:
    """Adds the routes."""
    _add_health(app, service)
    _add_models(app, service)
    _add_facts(app, service)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return PlainTextResponse(
            f"Baton serves {service.names.first}: POST /v1/completions or /v1/chat/completions; "
            f"see /health, /workers, /metrics, /openapi.json\n"
        )

    @app.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
    @app.get("/health", responses=errors())
    async def health() -> Response:
        """200 when requests can be served: a prefill and a decode worker, or a unified one, are ready."""
        missing = service.control.membership.missing
        if missing is None:
            return json_response({"status": "ok"})
        raise Unavailable(missing)

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
        """Does nothing, because no prefix is cached. Benchmarks call this before a run."""
        return json_response({"status": "ok"})


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", responses=errors())
    async def models() -> Response:
        """The model, once under each of its names."""
        data = [_model(service, name) for name in service.names.served]
        return json_response({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", responses=errors(NOT_FOUND))
    async def model(name: str) -> Response:
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
        return json_response(add_schemas(app.openapi()))


def worker_row(member: Member, now: float) -> dict[str, Any]:
    """Describes one worker for `/workers`."""
    registered, stats = member.registered, member.stats
    return {
        "id": member.key.worker_id,
        "role": str(member.role),
        "pid": registered.pid,
        "state": "ready",  # a worker that cannot serve is not a member
        "instance": str(member.key.instance),  # as text: it exceeds 2**53, which JSON readers round
        "host": registered.host,
        "device": registered.device,
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


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "baton",
        "root": service.model,
        "parent": None,
        "max_model_len": service.limits.context_length,
    }


def _server_info(service: Service) -> dict[str, Any]:
    """Sums over decode and unified workers, since each request occupies one of them."""
    decodes = [each.registered for each in service.control.membership.members if each.role is not Role.PREFILL]
    return {
        "model_id": service.names.first,
        "served_model_name": service.names.first,
        "model_path": service.model,
        "tokenizer_path": service.texts,
        "version": baton_version(),
        "max_running_requests": sum(each.max_running_requests for each in decodes),
        "max_total_tokens": sum(each.max_total_tokens for each in decodes),
        "max_total_num_tokens": sum(each.max_total_tokens for each in decodes),
        "context_length": service.limits.context_length,
        "page_size": service.limits.page_size,
        "tp_size": 1,
        "dp_size": 1,
        "disaggregation_mode": "null",  # to a router this is a plain server: the gateway pairs the workers
        "internal_states": [{}],  # benchmarks read the first one
    }


def _model_info(service: Service) -> dict[str, Any]:
    limits = service.limits
    return {
        "model_path": service.model,
        "tokenizer_path": service.texts,
        "served_model_name": service.names.first,
        "is_generation": True,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "max_context_length": limits.context_length,
        "vocab_size": limits.vocab_size,
    }
