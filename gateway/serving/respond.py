"""The way of a request that generates, in any API: read, checked, counted, tokenised, started, answered.

Its bytes count at admission.py until they are tokens. generation.py follows it from there, and answering.py writes the
response.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway.generation.generation import Generation
from gateway.generation.times import Times
from gateway.generation.translate import PreparedPrompt
from gateway.http.protocol import HEADER, request_id_of, token_of
from gateway.serving.answering import wants_timeline
from gateway.serving.bodies import check_content, read_body
from gateway.serving.service import Service
from gateway.words.limits import Limits
from gateway.words.places import named
from gateway.words.request import Ask, Grammar
from gateway.words.router_marks import refuse_marked
from runtime.settings import HttpLimits

LONG_BODY_BYTES = 16 * 1024  # a longer body is parsed and tokenised in a thread, one at a time
MANY_PROMPTS = 64  # a body with more prompts is tokenised in a thread, too
HUGE_BODY_BYTES = 256 * 1024  # a longer body is tokenised apart, so that shorter ones do not wait for it
T = TypeVar("T")
ECHO_WORK = 8  # times as long as tokenising: an echo makes text of each token again


class Call(Protocol):
    """A client's request, after all checks that need no tokens."""

    @property
    def asks(self) -> Sequence[Ask]:
        """What it asks for: one Ask, or several that are answered together."""
        ...

    @property
    def response_id(self) -> str:
        """The id of its answer."""
        ...

    @property
    def ids(self) -> Mapping[str, range]:
        """Names by which another request may abort it: the choices that each means."""
        ...

    def answer(self, service: Service, generation: Generation) -> Response:
        """The response, streamed or whole."""
        ...


Parse = Callable[[bytes, Limits, HttpLimits], Call]


async def respond(service: Service, request: Request, parse_body: Parse) -> Response:
    """Answers a request if there is room for it. Its bytes count until they are tokens."""
    received_at = service.clock.now()
    check_content(request)
    refuse_marked(HEADER, request.headers.getlist(HEADER))
    with service.admission.reading() as count:
        raw = await read_body(request, service.http_limits, count)
        service.admission.check()  # spares parsing a body that would be refused
        if len(raw) > LONG_BODY_BYTES:  # in a thread, so that other clients' tokens do not wait for it
            async with service.one_long_body:
                call = await asyncio.to_thread(parse_body, raw, service.control.limits, service.http_limits)
        else:
            call = parse_body(raw, service.control.limits, service.http_limits)
        asks = call.asks
        work = work_of(raw, asks, service.translator.growth)
        del raw

        service.names.check(asks[0].model)
        num_prompts = sum(len(ask.prompts) for ask in asks)
        with service.admission.entering(asks[0].num_choices * num_prompts):  # each prompt has as many
            is_long = work > LONG_BODY_BYTES or num_prompts > MANY_PROMPTS
            lane = (service.one_huge_text if work > HUGE_BODY_BYTES else service.one_long_text) if is_long else None
            grammars = await _grammars(service, request, asks, lane)
            translate = service.translator.all_prompts
            if lane is not None:
                async with lane:
                    prompts = await asyncio.to_thread(translate, asks, service.control.limits, grammars)
            else:
                prompts = translate(asks, service.control.limits, grammars)
            generation = await _started(service, request, call, prompts, received_at)
    return call.answer(service, generation)


async def _grammars(service: Service, request: Request, asks: Sequence[Ask], lane: asyncio.Lock | None) -> list[str]:
    """The text of each request's grammar. `lane`: where long texts take turns; None: these are short. A client, whose
    new grammars take turns with those of others, is known by its API key; by its address where none is needed, since
    many send the same word there, and one may send any."""
    shapes = await _shapes(service, asks, lane)
    if not any(shapes):
        return [""] * len(asks)
    host = request.client.host if request.client is not None else ""
    client = token_of(request.scope).decode("latin-1") if service.api_keys else host

    async def text_of(ask: Ask, shape: Grammar | None) -> str:
        with named(ask.origins):
            return await service.grammars.text_of(shape, client)

    async def texts() -> list[str]:
        return [await text_of(ask, shape) for ask, shape in zip(asks, shapes, strict=True)]

    return await unless_left(request.receive, texts())


async def _shapes(service: Service, asks: Sequence[Ask], lane: asyncio.Lock | None) -> list[Grammar | None]:
    shape_of, renders = service.translator.shape_of, service.translator.renders_for_shape
    if lane is None or not any(map(renders, asks)):
        return [shape_of(ask) for ask in asks]
    async with lane:
        return await asyncio.to_thread(lambda: [shape_of(ask) for ask in asks])


def work_of(raw: bytes, asks: Sequence[Ask], growth: int) -> int:
    """Bytes of a plain body that take as long to tokenise. `growth`: how many times longer the tokenizer may make a
    text, which is only true of characters beyond ASCII."""
    is_plain = raw.isascii() and b"\\u" not in raw
    return len(raw) * max(1 if is_plain else growth, ECHO_WORK if any(request.echo for request in asks) else 1)


async def _started(
    service: Service, request: Request, call: Call, prompts: list[PreparedPrompt], received_at: float
) -> Generation:
    """The generation, with its prompts assigned."""
    wants_times = wants_timeline(request, call.asks[0].timeline)
    times = Times(service.clock, service.metrics, received_at, wants_times)
    dispatch, x_request_id = service.control.dispatch, request_id_of(request.scope)
    new_detokenizer = service.translator.new_detokenizer
    generation = Generation(call.response_id, prompts, new_detokenizer, dispatch, times, x_request_id)
    with named(call.asks[0].origins):
        service.in_flight.add(generation, call.ids)
    await generation.start()
    return generation


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. It is cancelled when the client leaves, or the caller is; ClientDisconnect if the client has.
    The client's body was read before."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, leaving = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
