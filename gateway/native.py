"""SGLang's native API: POST /generate, its probe /health_generate, and /abort_request.

A request becomes completions, which are answered like those of OpenAI's API. Only names and the answer's shape differ.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI, Request, Response

from gateway.answering import StreamedAnswer, WholeAnswer
from gateway.bodies import check_content, read_body
from gateway.documents import body_of, errors, generation_responses
from gateway.generation import Generation
from gateway.http_errors import json_response
from gateway.json_body import check_list, validated
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.native_answer import NativeAnswer, Wanted
from gateway.native_schemas import (
    RENAMED,
    AbortRequest,
    GenerateRequest,
    NativePrompt,
    NativeSampling,
    check_lengths,
)
from gateway.native_shapes import Generated
from gateway.native_unsupported import refuse_unsupported_native
from gateway.respond import respond
from gateway.schemas import check_counts
from gateway.service import Service
from gateway.strict_json import parse_json
from gateway.times import Times
from protocol.errors import BadRequest, Overloaded, Unavailable
from runtime.settings import HttpLimits

PROBE_S: Final = 20.0  # as long as SGLang's probe waits
LOOK_S: Final = 0.25  # how often a probe that waits looks whether others get tokens
_NAMES: Final = {openai_name: name for name, openai_name in RENAMED.items()}
_WITHIN: Final = re.compile(r"\b(max_tokens|min_tokens)\b")  # they are named in errors of other fields, too


@dataclass(frozen=True)
class NativeCall:
    """A native request; see service.Call. `requests`: what it asks for, as completions. `names`: the id of each
    prompt."""

    body: GenerateRequest
    requests: Sequence[NativePrompt]
    response_id: str
    names: Sequence[str]

    @property
    def ids(self) -> Mapping[str, range]:
        """See service.Call. The client's name means all, that of a prompt its choices, that of a choice it alone."""
        num_choices = self.requests[0].num_choices
        of_choices = {name: range(index, index + 1) for index, name in enumerate(self._choice_names)}
        of_prompts = {
            name: range(place * num_choices, (place + 1) * num_choices) for place, name in enumerate(self.names)
        }
        everything = range(len(of_choices))
        whole = {self.body.rid: everything} if isinstance(self.body.rid, str) else {}
        return of_choices | of_prompts | whole | {self.response_id: everything}

    @property
    def _choice_names(self) -> Sequence[str]:
        num_choices = self.requests[0].num_choices
        return self.names if num_choices == 1 else [f"{each}_{c}" for each in self.names for c in range(num_choices)]

    def answer(self, service: Service, generation: Generation) -> Response:
        """See service.Call."""
        asked = [(each.logprobs, each.start_len) for each in self.requests for _ in range(each.num_prompts)]
        shape = NativeAnswer(
            is_list=self.body.is_list or generation.prompts.num_choices > 1,
            names=self._choice_names,
            wanted=[Wanted(*each, interval) for each, interval in zip(asked, self.body.intervals, strict=True)],
            text_of=service.translator.token_text if self.body.return_text_in_logprobs else lambda _: None,
        )
        answer = StreamedAnswer if self.body.stream else WholeAnswer
        return answer(generation, shape, service.long_answers)


def native_call(raw: bytes, limits: Limits, http_limits: HttpLimits) -> NativeCall:
    """All checks of a native request that need no tokens. May run in a thread."""
    body = parse_json(raw)
    if isinstance(body, dict):
        check_lengths(body, http_limits.max_prompts)
        refuse_unsupported_native(body)
        check_list(body.get("input_ids"), limits, "input_ids")
    parsed = validated(GenerateRequest, body)
    requests = parsed.requests()
    for each in requests:
        check_counts(each, http_limits, len(parsed.prompts))
    response_id = f"gen-{secrets.token_hex(16)}"
    return NativeCall(parsed, requests, response_id, parsed.names(response_id))


@contextmanager
def _native_names() -> Iterator[None]:
    """Errors that name a field of OpenAI's API name SGLang's instead."""
    try:
        yield
    except BadRequest as error:
        name = _NAMES.get(error.param or "", error.param)
        error.message = _WITHIN.sub(lambda found: _NAMES[found[0]], error.message)
        if name in NativeSampling.model_fields:
            inside = f"sampling_params.{name}"
            if error.message.startswith(f"{name}:"):
                error.message = inside + error.message.removeprefix(name)
            error.param = inside
        raise


async def _probe(service: Service, unseen: Metrics) -> None:
    """Has workers generate one token. Raises what went wrong. `unseen`: what counts it, and nobody reads."""
    request = NativePrompt.model_construct(prompt=[0], max_tokens=1, temperature=0.0)
    prompts = service.translator.prompts(request, service.control.limits)
    times = Times(service.clock, unseen, service.clock.now())
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


async def _works(service: Service, unseen: Metrics) -> bool:
    """Whether workers generate: a token for this call, or for any other meanwhile, since a probe may wait behind them.
    Raises what went wrong."""
    num_before = service.metrics.num_generation_tokens
    probe = asyncio.create_task(_probe(service, unseen))
    try:
        async with asyncio.timeout(PROBE_S):
            while not (await asyncio.wait({probe}, timeout=LOOK_S))[0]:
                if service.metrics.num_generation_tokens > num_before:
                    return True
    except TimeoutError:
        return False
    finally:
        probe.cancel()
    probe.result()
    return True


def add_native(app: FastAPI, service: Service) -> None:
    """Adds the routes of SGLang's native API."""
    unseen = Metrics(service.names.first)

    @app.put("/generate", include_in_schema=False)
    @app.post(
        "/generate",
        openapi_extra=body_of(GenerateRequest, {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}}),
        responses=generation_responses(Generated, is_list=True),
        response_class=Response,
    )
    async def generate(request: Request) -> Response:
        """Continues a prompt or a list of them, as SGLang's own route does. A stream repeats the text so far."""
        with _native_names():
            return await respond(service, request, native_call)

    @app.get("/health_generate", responses=errors())
    async def health_generate() -> Response:
        """200 when workers have generated a token since this call. Also when they have no room for it: then they
        work."""
        missing = service.control.membership.missing
        if missing is not None:
            raise Unavailable(missing)
        try:
            works = await _works(service, unseen)
        except Overloaded as error:
            return json_response({"status": "busy", "why": error.message})
        if not works:
            raise Unavailable(f"workers have generated no token within {PROBE_S:g} s")
        return json_response({"status": "ok"})

    @app.post("/abort_request", openapi_extra=body_of(AbortRequest, {"rid": "request-7"}), responses=errors(415, 429))
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
