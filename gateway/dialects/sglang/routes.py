"""SGLang's native API: POST /generate, its probe /health_generate, and /abort_request.

read.py says what a body asks for, write.py how it is answered.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response

from gateway.dialects.sglang.fields import (
    AbortRequest,
    GenerateRequest,
    check_lengths,
)
from gateway.dialects.sglang.read import asks_of
from gateway.dialects.sglang.shapes import Generated
from gateway.dialects.sglang.unsupported import refuse_unsupported_native
from gateway.dialects.sglang.write import NativeAnswer, Wanted
from gateway.dialects.shared.counts import check_counts
from gateway.dialects.shared.documents import body_of, errors, generation_responses
from gateway.dialects.shared.json_body import check_list, validated
from gateway.generation.generation import Generation
from gateway.http.errors import json_response
from gateway.serving.answering import StreamedAnswer, WholeAnswer
from gateway.serving.bodies import check_content, read_body
from gateway.serving.probe import Probe
from gateway.serving.respond import respond
from gateway.serving.service import Service
from gateway.words.limits import Limits
from gateway.words.request import Ask
from gateway.words.strict_json import parse_json
from protocol.errors import BadRequest, Overloaded
from runtime.settings import HttpLimits


@dataclass(frozen=True)
class NativeCall:
    """A native request; see respond.Call. `names`: the id of each prompt."""

    body: GenerateRequest
    asks: Sequence[Ask]
    response_id: str
    names: Sequence[str]

    @property
    def ids(self) -> Mapping[str, range]:
        """See respond.Call. The client's name means all, that of a prompt its choices, that of a choice it alone."""
        num_choices = self.asks[0].num_choices
        of_choices = {name: range(index, index + 1) for index, name in enumerate(self._choice_names)}
        of_prompts = {
            name: range(position * num_choices, (position + 1) * num_choices)
            for position, name in enumerate(self.names)
        }
        everything = range(len(of_choices))
        whole = {self.body.rid: everything} if isinstance(self.body.rid, str) else {}
        return of_choices | of_prompts | whole | {self.response_id: everything}

    @property
    def _choice_names(self) -> Sequence[str]:
        num_choices = self.asks[0].num_choices
        return self.names if num_choices == 1 else [f"{name}_{c}" for name in self.names for c in range(num_choices)]

    def answer(self, service: Service, generation: Generation) -> Response:
        """See respond.Call."""
        shape = NativeAnswer(
            is_list=self.body.is_list or generation.prompts.num_choices > 1,
            names=self._choice_names,
            wanted=list(map(Wanted, self.body.num_top, self.body.starts, self.body.intervals)),
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
    asks = asks_of(parsed)
    for request in asks:
        check_counts(request, http_limits, len(parsed.prompts))
    response_id = f"gen-{secrets.token_hex(16)}"
    return NativeCall(parsed, asks, response_id, parsed.names(response_id))


def add_native(app: FastAPI, service: Service) -> None:
    """Adds the routes of SGLang's native API."""
    probe = Probe(service)

    @app.put("/generate", include_in_schema=False)
    @app.post(
        "/generate",
        openapi_extra=body_of(GenerateRequest, {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}}),
        responses=generation_responses(Generated, is_list=True),
        response_class=Response,
    )
    async def generate(request: Request) -> Response:
        """Continues a prompt or a list of them, as SGLang's own route does. A stream repeats the text so far."""
        return await respond(service, request, native_call)

    @app.get("/health_generate", responses=errors())
    async def health_generate() -> Response:
        """200 when workers have generated a token since this call. Also when they have no room for it: then they
        work."""
        try:
            await probe.check()
        except Overloaded as error:
            return json_response({"status": "busy", "why": error.message})
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
