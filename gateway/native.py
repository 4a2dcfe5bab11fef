"""SGLang's native API: POST /generate, its probe /health_generate, and /abort_request.

A request becomes completions, which are answered like those of OpenAI's API. Only names and the answer's shape differ.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI, Request, Response
from starlette.types import Receive

from gateway.answering import StreamedAnswer, answer_whole
from gateway.generation import Generation, Times
from gateway.http_errors import json_response
from gateway.in_flight import Ids
from gateway.native_answer import NativeAnswer
from gateway.native_schemas import RENAMED, AbortRequest, GenerateRequest, NativePrompt
from gateway.native_unsupported import refuse_unsupported_native
from gateway.openapi import errors
from gateway.schemas import CompletionRequest, check_counts, parse_json, validated
from gateway.service import Service, check_content, read_body, respond
from gateway.translate import Limits, check_list
from protocol.errors import BadRequest, Overloaded, Unavailable
from runtime.settings import HttpLimits

PROBE_S: Final = 20.0  # as long as SGLang's probe waits
_NAMES: Final = {openai_name: name for name, openai_name in RENAMED.items()}
_OPENAI_NAME: Final = re.compile(rf"\b({'|'.join(_NAMES)})\b")


@dataclass(frozen=True)
class NativeCall:
    """A native request; see service.Call. `requests`: what it asks for, as completions."""

    body: GenerateRequest
    requests: Sequence[CompletionRequest]
    names: Sequence[str]  # the client's id of each prompt, or none

    @property
    def id_kind(self) -> str:
        """See service.Call."""
        return "gen"

    @property
    def ids(self) -> Ids:
        """See service.Call."""
        whole = self.body.rid if isinstance(self.body.rid, str) else None
        return Ids(whole, {place: name for place, name in enumerate(self.names) if name != whole})

    async def answer(self, service: Service, generation: Generation, receive: Receive) -> Response:
        """See service.Call."""
        num_top = [each.logprobs for each in self.requests for _ in range(each.num_prompts)]
        is_list = self.body.is_list or generation.num_choices > 1
        text_of = service.translator.token_text if self.body.return_text_in_logprobs else lambda _: None
        shape = NativeAnswer(generation, is_list=is_list, names=self.names, num_top=num_top, text_of=text_of)
        return StreamedAnswer(generation, shape) if self.body.stream else await answer_whole(generation, shape, receive)


def native_call(raw: bytes, limits: Limits, http_limits: HttpLimits) -> NativeCall:
    """All checks of a native request that need no tokens. May run in a thread."""
    body = parse_json(raw)
    if isinstance(body, dict):
        refuse_unsupported_native(body)
        check_list(body.get("input_ids"), limits)
    parsed = validated(GenerateRequest, body)
    requests = parsed.requests()
    for each in requests:
        check_counts(each, http_limits, len(parsed.prompts))
    return NativeCall(parsed, requests, parsed.names())


@contextmanager
def _native_names() -> Iterator[None]:
    """Errors that name a field of OpenAI's API name SGLang's instead."""
    try:
        yield
    except BadRequest as error:
        error.message = _OPENAI_NAME.sub(lambda found: _NAMES[found[0]], error.message)
        error.param = _NAMES.get(error.param or "", error.param)
        raise


async def _probe(service: Service) -> None:
    """Has workers generate one token. Raises what went wrong."""
    request = NativePrompt.model_construct(prompt=[0], max_tokens=1, temperature=0.0)
    prompts = service.translator.prompts(request, service.control.limits)
    times = Times(service.clock, service.metrics, service.clock.now())
    response_id = f"probe-{secrets.token_hex(16)}"
    generation = Generation(response_id, prompts, service.translator.new_detokenizer, service.control.dispatch, times)
    try:
        await generation.start()
        async for _ in generation.batches():
            pass
    finally:
        generation.abandon()
    if generation.error is not None:
        raise generation.error


def add_native(app: FastAPI, service: Service) -> None:
    """Adds the routes of SGLang's native API."""

    @app.post("/generate", include_in_schema=False)
    async def generate(request: Request) -> Response:
        """Continues a prompt, as SGLang's own route does."""
        with _native_names():
            return await respond(service, request, native_call)

    @app.get("/health_generate", responses=errors())
    async def health_generate() -> Response:
        """200 when workers have generated a token for this call. Also when they have no room for it: then they work."""
        missing = service.control.membership.missing
        if missing is not None:
            raise Unavailable(missing)
        try:
            async with asyncio.timeout(PROBE_S):
                await _probe(service)
        except Overloaded as error:
            return json_response({"status": "busy", "why": error.message})
        except TimeoutError:
            raise Unavailable(f"workers have generated no token within {PROBE_S:g} s") from None
        return json_response({"status": "ok"})

    @app.post("/abort_request", include_in_schema=False)
    async def abort_request(request: Request) -> Response:
        """Ends requests where they are: they keep what they have, and their finish reason is abort. An id that is not
        in flight is no error: its request may have ended just now."""
        check_content(request)
        with service.admission.reading() as count:
            raw = await read_body(request, service.http_limits, count)
        body = validated(AbortRequest, parse_json(raw))
        if body.abort_all:
            service.in_flight.abort_all()
        elif body.rid:
            service.in_flight.abort(body.rid)
        else:
            raise BadRequest("rid: is missing, expected the id of a request, or abort_all: true", param="rid")
        return json_response({"status": "ok"})
