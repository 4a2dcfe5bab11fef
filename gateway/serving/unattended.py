"""The way of a request that needs no worker: read, checked, and answered from text or tokens alone."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from fastapi import Request, Response

from gateway.serving.bodies import check_content, read_body
from gateway.serving.respond import HUGE_BODY_BYTES, LONG_BODY_BYTES, work_of
from gateway.serving.service import Service


class Parsed(Protocol):
    """A request after all checks that need no tokens."""

    @property
    def model(self) -> str | None:
        """The model that is asked for."""
        ...


P = TypeVar("P", bound=Parsed)


async def answer_alone(
    service: Service, request: Request, parse: Callable[[bytes], P], answer: Callable[[P], bytes], factor: int = 1
) -> Response:
    """The response, whose JSON `answer` makes. Its bytes count until then. Much work is done in a thread, in turn with
    other requests; `factor`: how many times longer a body takes than one that is tokenised."""
    check_content(request)
    with service.admission.reading() as count:
        raw = await read_body(request, service.http_limits, count)
        if len(raw) > LONG_BODY_BYTES:
            async with service.one_long_body:
                parsed = await asyncio.to_thread(parse, raw)
        else:
            parsed = parse(raw)

        service.names.check(parsed.model)
        work = factor * work_of(raw, (), service.translator.growth)
        if work > LONG_BODY_BYTES:
            async with service.one_huge_text if work > HUGE_BODY_BYTES else service.one_long_text:
                body = await asyncio.to_thread(answer, parsed)
        else:
            body = answer(parsed)
    return Response(body, media_type="application/json")
