"""Answers POST /v1/completions and /v1/chat/completions, and holds what all routes of one gateway share. native.py has
the routes of another API.

A request's way: its body is read and checked, counted by `Admission`, translated to token ids, and started at the
workers. generation.py follows it from there, and answering.py writes the response.
"""

import asyncio
import secrets
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from gateway.answering import StreamedAnswer, WholeAnswer, wants_timeline
from gateway.control import Control
from gateway.generation import Generation
from gateway.grammar_checks import GrammarChecks
from gateway.grammars import asks
from gateway.http_protocol import HEADER, body_refused, request_id_of, token_of
from gateway.in_flight import InFlight
from gateway.limits import Limits, check_list
from gateway.logprobs import LogprobWriter
from gateway.long_answers import LongAnswers
from gateway.metrics import Metrics
from gateway.openai_answer import ChunkWriter, ResponseHead
from gateway.openapi import ChatCompletion, Completion, body_of, generation_responses
from gateway.openapi_rules import Bounds
from gateway.prompt_part import PromptWriter
from gateway.schemas import (
    AnyRequest,
    ChatRequest,
    CompletionRequest,
    StreamOptions,
    check_counts,
    parse,
    parse_json,
)
from gateway.times import Times
from gateway.translate import Prompt, Translator
from gateway.turns import unless_left
from gateway.unsupported import refuse_marked, refuse_misspelt, refuse_unsupported
from protocol.errors import Overloaded, UnknownModel
from runtime.clock import Clock
from runtime.settings import HttpLimits

BODIES = 16  # how many bodies of the greatest length may be held at a time
LONG_BODY_BYTES = 16 * 1024  # a longer body is parsed and tokenised in a thread, one at a time
MANY_PROMPTS = 64  # a body with more prompts is tokenised in a thread, too
HUGE_BODY_BYTES = 256 * 1024  # a longer body is tokenised apart, so that shorter ones do not wait for it
ECHO_WORK = 8  # times as long as tokenising: an echo makes text of each token again
JSON_TYPE = "application/json"
MAX_SHOWN = 200  # characters of a wrong name that an error shows


class Admission:
    """Decides whether a request is admitted: choices in flight are bounded, and so are the bytes not yet tokenised.
    Beyond a bound the client gets 429 with Retry-After. `num_in_flight` returns how many choices the workers have now.
    No locks: everything runs on the gateway's loop."""

    def __init__(self, max_choices: int, max_body_bytes: int, num_in_flight: Callable[[], int]) -> None:
        self._max_choices = max_choices
        self._max_bytes = BODIES * max_body_bytes
        self._num_in_flight = num_in_flight
        self._num_entering = 0  # choices of requests that are still being tokenised
        self.num_bytes = 0  # bytes being read, parsed or tokenised

    def check(self, num_choices: int = 1) -> None:
        """Raises Overloaded unless there is room for `num_choices`."""
        known = self._num_in_flight() + self._num_entering
        if known + num_choices > self._max_choices:
            raise Overloaded(
                f"{known} choices are in flight and this request has {num_choices}, "
                f"expected at most {self._max_choices} in all; try again"
            )

    @contextmanager
    def entering(self, num_choices: int) -> Iterator[None]:
        """Counts `num_choices` until the block ends; then the workers have them. Overloaded when they are too many."""
        self.check(num_choices)
        self._num_entering += num_choices
        try:
            yield
        finally:
            self._num_entering -= num_choices

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """Counts the bytes that the block reports, until the block ends. Overloaded when all bodies together are too
        long."""
        total = 0

        def read(num_bytes: int) -> None:
            nonlocal total
            total += num_bytes
            self.num_bytes += num_bytes
            if self.num_bytes > self._max_bytes:
                raise Overloaded(f"requests of more than {self._max_bytes} bytes are being read; try again")

        try:
            yield read
        finally:
            self.num_bytes -= total


@dataclass(frozen=True)
class ModelNames:
    """The names by which clients may ask for the one model. `served`: those that `/v1/models` lists. `folder`: the text
    of --model, accepted because clients of other servers send it, but not listed."""

    served: tuple[str, ...]
    folder: str | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """All of them, the folder with and without slashes at its end."""
        typed = (self.folder, self.folder.rstrip("/")) if self.folder else ()
        return tuple(dict.fromkeys((*self.served, *typed)))

    @property
    def first(self) -> str:
        """The name in every answer and in the metrics, also when the request used another."""
        return self.served[0]

    def check(self, model: str | None) -> None:
        """UnknownModel unless `model` is one of the names, or None."""
        if model is None or model in self.served or (self.folder and model.rstrip("/") == self.folder.rstrip("/")):
            return
        names = " or ".join(repr(name) for name in self.served)
        verb = "is" if len(self.served) == 1 else "are"
        raise UnknownModel(
            f"model: got {model[:MAX_SHOWN]!r}, expected {names}, which {verb} served here", param="model"
        )


@dataclass(frozen=True)
class Service:
    """Everything that routes need."""

    names: ModelNames
    model: str  # the path of its folder
    texts: str  # the path of its tokenizer's folder
    control: Control
    translator: Translator
    metrics: Metrics
    clock: Clock
    started_at: int  # seconds since 1970
    http_limits: HttpLimits
    admission: Admission
    grammars: GrammarChecks
    api_keys: tuple[str, ...] = ()  # empty: every client is served
    allowed_origins: tuple[str, ...] = ()
    # Each bounds work to one request at a time:
    one_long_body: asyncio.Lock = field(default_factory=asyncio.Lock)  # parsing it, which lets nothing else run
    one_long_text: asyncio.Lock = field(default_factory=asyncio.Lock)  # tokenising it, which takes memory
    one_huge_text: asyncio.Lock = field(default_factory=asyncio.Lock)  # tokenising it, which takes seconds
    in_flight: InFlight = field(default_factory=InFlight)
    long_answers: LongAnswers = field(default_factory=LongAnswers)

    @property
    def bounds(self) -> Bounds:
        """What can be asked for now."""
        translator = self.translator
        return Bounds(
            names=self.names.all,
            templates=translator.template_names,
            takes_text=translator.takes_text,
            takes_empty_text=translator.takes_empty_text,
            limits=self.control.limits,
            http=self.http_limits,
        )


# ---- requests for text ----


def add_generation(app: FastAPI, service: Service) -> None:
    """Adds the two routes that generate."""

    @app.post(
        "/v1/completions",
        openapi_extra=body_of(CompletionRequest, {"prompt": "Once upon a time", "max_tokens": 8}),
        responses=generation_responses(Completion),
        response_class=Response,
    )
    async def completions(request: Request) -> Response:
        """Continues a prompt: text, token ids, or a list of either."""
        return await respond(service, request, partial(openai_call, CompletionRequest))

    @app.post(
        "/v1/chat/completions",
        openapi_extra=body_of(
            ChatRequest, {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8}
        ),
        responses=generation_responses(ChatCompletion),
        response_class=Response,
    )
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation."""
        return await respond(service, request, partial(openai_call, ChatRequest))


class Call(Protocol):
    """A client's request, after all checks that need no tokens."""

    @property
    def requests(self) -> Sequence[AnyRequest]:
        """What it asks for: one request, or several that are answered together."""
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


@dataclass(frozen=True)
class OpenAiCall:
    """A completion or a chat completion."""

    parsed: AnyRequest
    response_id: str

    @property
    def requests(self) -> Sequence[AnyRequest]:
        """See Call."""
        return (self.parsed,)

    @property
    def ids(self) -> Mapping[str, range]:
        """See Call."""
        return {self.response_id: range(self.parsed.num_choices * self.parsed.num_prompts)}

    def answer(self, service: Service, generation: Generation) -> Response:
        """See Call."""
        parsed, created = self.parsed, int(datetime.now(UTC).timestamp())
        is_chat, logprobs = isinstance(parsed, ChatRequest), None
        if parsed.num_top_logprobs is not None:
            as_ids, bytes_of = parsed.return_tokens_as_token_ids is True, service.translator.token_bytes
            logprobs = LogprobWriter(is_chat, bytes_of, as_ids, parsed.num_top_logprobs)
        prompt_logprobs = None
        if parsed.prompt_logprobs is not None:
            prompt_logprobs = PromptWriter(parsed.prompt_logprobs, service.translator.token_bytes)
        with_ids, name = parsed.return_token_ids is True, service.names.first
        head = ResponseHead(generation.response_id, created, name, is_chat, with_ids, logprobs, prompt_logprobs)
        if not parsed.stream:
            return WholeAnswer(generation, head, service.long_answers)
        options = parsed.stream_options or StreamOptions()
        writer = ChunkWriter(head, options.include_usage is True, options.continuous_usage_stats is True)
        return StreamedAnswer(generation, writer, service.long_answers)


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
        requests = call.requests
        work = work_of(raw, requests, service.translator.growth)
        del raw

        service.names.check(requests[0].model)
        num_prompts = sum(each.num_prompts for each in requests)
        with service.admission.entering(requests[0].num_choices * num_prompts):  # each prompt has as many
            grammars = await _grammars(service, request, requests)
            translate = service.translator.all_prompts
            if work > LONG_BODY_BYTES or num_prompts > MANY_PROMPTS:
                async with service.one_huge_text if work > HUGE_BODY_BYTES else service.one_long_text:
                    prompts = await asyncio.to_thread(translate, requests, service.control.limits, grammars)
            else:
                prompts = translate(requests, service.control.limits, grammars)
            generation = await _started(service, request, call, prompts, received_at)
    return call.answer(service, generation)


async def _grammars(service: Service, request: Request, requests: Sequence[AnyRequest]) -> list[str]:
    """The text of each request's grammar. A client, whose new ones take turns with those of others, is known by its
    API key; by its address where none is needed, since many send the same word there, and one may send any."""
    if not any(map(asks, requests)):
        return [""] * len(requests)
    host = request.client.host if request.client is not None else ""
    client = token_of(request.scope).decode("latin-1") if service.api_keys else host

    async def texts() -> list[str]:
        return [await service.grammars.text_of(each, client) for each in requests]

    return await unless_left(request.receive, texts())


def work_of(raw: bytes, requests: Sequence[AnyRequest], growth: int) -> int:
    """Bytes of a plain body that take as long to tokenise. `growth`: how many times longer the tokenizer may make a
    text, which is only true of characters beyond ASCII."""
    is_plain = raw.isascii() and b"\\u" not in raw
    return len(raw) * max(1 if is_plain else growth, ECHO_WORK if any(each.echo for each in requests) else 1)


def openai_call(kind: type[AnyRequest], raw: bytes, limits: Limits, http_limits: HttpLimits) -> OpenAiCall:
    """All checks of a request that need no tokens. May run in a thread."""
    body = parse_json(raw)
    if isinstance(body, dict):
        refuse_unsupported(body)
        refuse_misspelt(body)
        check_list(body.get("prompt"), limits, "prompt")
    parsed = parse(kind, body)
    check_counts(parsed, http_limits)
    return OpenAiCall(parsed, f"{'chatcmpl' if isinstance(parsed, ChatRequest) else 'cmpl'}-{secrets.token_hex(16)}")


async def _started(
    service: Service, request: Request, call: Call, prompts: list[Prompt], received_at: float
) -> Generation:
    """The generation, with its prompts assigned."""
    wants_times = wants_timeline(request, call.requests[0].timeline)
    times = Times(service.clock, service.metrics, received_at, wants_times)
    dispatch, x_request_id = service.control.dispatch, request_id_of(request.scope)
    new_detokenizer = service.translator.new_detokenizer
    generation = Generation(call.response_id, prompts, new_detokenizer, dispatch, times, x_request_id)
    service.in_flight.add(generation, call.ids)
    await generation.start()
    return generation


# ---- bodies ----


def check_content(request: Request) -> None:
    """Raises 415 unless the headers name plain JSON. Missing headers count as plain JSON."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(415, f"content-encoding: got {encoding[:80]!r}, expected an uncompressed body")

    given = request.headers.get("content-type", JSON_TYPE)
    kind, _, rest = given.partition(";")
    kind = kind.strip().lower()
    if kind != JSON_TYPE and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, f"content-type: got {given[:80]!r}, expected {JSON_TYPE!r}")

    charset = rest.partition("charset=")[2].strip(' "').lower()
    if charset not in ("", "utf-8", "utf8"):
        raise HTTPException(415, f"content-type: got charset {charset[:80]!r}, expected 'utf-8'")


async def read_body(request: Request, limits: HttpLimits, count: Callable[[int], None]) -> bytes:
    """The whole body, without a byte order mark. Calls `count` with the length of each part; `count` may raise.
    HTTPException 413 if it is too long, 408 if it does not arrive in time. The connection ends after either."""
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > limits.max_body_bytes:
                    message = f"the body is longer than that, expected at most {limits.max_body_bytes} bytes"
                    raise body_refused(request.scope, 413, message)
                count(len(part))
                parts.append(part)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_timeout_s:g} s"
        raise body_refused(request.scope, 408, message) from None
    return b"".join(parts).removeprefix(BOM_UTF8)  # some editors and clients write this mark before UTF-8
