"""What is tried: each target reads the bytes of a client as the gateway does, and says what came of them.

An outcome is "ok" or the gateway's own error. Any other exception is a finding, and so is an error that echoes much of
what the client has sent.
"""

import asyncio
import re
from array import array
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, cast

import uvicorn
from uvicorn.server import ServerState

from gateway.dialects.openai.routes import CHATS, COMPLETIONS, openai_call
from gateway.dialects.sglang.routes import native_call
from gateway.generation.translate import Translator
from gateway.http.errors import error_response
from gateway.http.protocol import BoundedHttp
from gateway.serving.respond import Call
from gateway.text.chat_template import ChatTemplates, read_template_sources
from gateway.text.model_folder import ModelFolder
from gateway.text.tokenizer import TextTokenizer
from gateway.words.limits import Limits
from gateway.words.strict_json import parse_json
from protocol.errors import BatonError
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics
from runtime.settings import HttpLimits
from tests.fuzz.vocabularies import KINDS, STORY, tokenizer_of
from tests.gateway.connection_by_hand import Loop, Transport

CONTEXT: Final = 32_768
LIMITS: Final = Limits(CONTEXT, 1024, 65_536, 65_536, 16, max_choices=64)
HTTP: Final = HttpLimits()
MAX_IDS: Final = 1024  # a longer echo is written in a thread
MAX_ERROR_BYTES: Final = 4096  # of an error's JSON: a client's text in it is cut
_VARIES: Final = re.compile(r"'.*'|\".*\"|[0-9]+|got .*?,", re.DOTALL)

# The bundled template, and what others do beside it: name tools, keep text in variables, look into what clients add.
TEMPLATES: Final = {
    "collecting": "{% set ns = namespace(text='', last=-1) %}{% for m in messages %}{% set ns.text = ns.text + m.role "
    "+ m.content.strip().split('</think>')[-1] %}{% if m.tool_calls %}{% for call in m.tool_calls %}"
    "{{ call.function.arguments | tojson(indent=2) }}{% endfor %}{% endif %}{% endfor %}{{ ns.text }}",
    "strict": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles "
    "must alternate') }}{% endif %}{{ bos_token + m.name | default(m.role) | trim + m.content | indent(2) }}"
    "{% endfor %}{{ strftime_now('%d %b %Y') }}"
    "{% if custom %}{{ custom | tojson }}{{ custom.items() | list }}{% endif %}",
}


def body_of(parse: Callable[..., Call], raw: bytes) -> str:
    """A whole request: JSON, its fields, the template, the tokenizer, stop strings and bans."""
    call = parse(raw, LIMITS, HTTP)
    translator("story").all_prompts(call.asks, LIMITS, [""] * len(call.asks))
    return "ok"


def read_body(raw: bytes) -> str:
    """The first byte says which route it came to."""
    routes = (partial(openai_call, COMPLETIONS), partial(openai_call, CHATS), native_call)
    return body_of(routes[raw[0] % 3] if raw else routes[0], raw[1:])


def read_text(raw: bytes) -> str:
    """A prompt. The first byte says which tokenizer reads it."""
    tokenizer, text = _chosen(raw)
    ids = tokenizer.encode_prompt(text, CONTEXT)
    assert not ids or (min(ids) >= 0 and max(ids) < tokenizer.vocab_size)
    assert ids is None or tokenizer.least_tokens(text) <= len(ids), "the lower bound is none"
    return "ok" if ids is not None else "too long"


def read_ids(raw: bytes) -> str:
    """Token ids of a prompt and of an answer, at most MAX_IDS, as text. The first byte says whose tokens they are."""
    tokenizer = tokenizer_of(KINDS[raw[0] % len(KINDS)]) if raw else tokenizer_of("story")
    num_ids = tokenizer.vocab_size + 2  # two that no token has
    ids = [each % num_ids for each in array("H", raw[1 : 1 + 2 * min(MAX_IDS, (len(raw) - 1) // 2)])]
    for skips in (False, True):
        detokenizer = tokenizer.detokenizer(ids[::-1], skips)
        text = "".join(map(detokenizer.feed, ids)) + detokenizer.flush()
        text.encode()
    for each in ids[:32]:
        tokenizer.bytes_of(each)
    return "ok"


def read_chat(raw: bytes) -> str:
    """Messages and variables, through templates of other kinds than the bundled one."""
    body = parse_json(raw)
    variables = body.pop("chat_template_kwargs", None) if isinstance(body, dict) else None
    messages = body.get("messages") if isinstance(body, dict) else body
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return "no messages"
    for name in ("default", *TEMPLATES):
        templates().render(messages, name, variables if isinstance(variables, dict) else {})
    return "ok"


def read_connection(raw: bytes) -> str:
    """The bytes of a connection, in pieces whose length the first byte says."""
    loop, transport = Loop(), Transport()
    config = uvicorn.Config(_no_route, log_config=None)
    uvicorns = {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": loop}
    http = BoundedHttp(HTTP, lambda _: None, lambda _: None, **uvicorns)
    http.connection_made(cast(asyncio.Transport, transport))
    size = (1 + raw[0] * 16) if raw else 1
    for begin in range(1, len(raw), size):
        http.data_received(raw[begin : begin + size])
        if transport.is_closing():
            break
    status = transport.written.split(b" ", 2)[1].decode() if transport.written else "waits"
    outcome = f"{status} {'closed' if transport.is_closing() else 'open'}"
    http.connection_lost(None)
    return outcome


TARGETS: Final[dict[str, Callable[[bytes], str]]] = {
    "body": read_body,
    "tokenizer": read_text,
    "detokenizer": read_ids,
    "template": read_chat,
    "http": read_connection,
}


def outcome_of(target: str, raw: bytes) -> str:
    """What one target says, with what varies from input to input left out. Raises what no client may cause."""
    try:
        return TARGETS[target](raw)
    except BatonError as refusal:
        told = refusal
    size = len(error_response(told).body)
    assert size <= MAX_ERROR_BYTES, f"an error of {size} bytes: {told.message[:100]}"
    return f"{type(told).__name__}: {_VARIES.sub('', told.message)}"


def warm_up() -> None:
    """Makes what all inputs share, so that the first one is not slow."""
    for kind in KINDS:
        tokenizer_of(kind).encode_prompt("Once upon a time")
    translator("story")


def seeds_of(target: str) -> dict[str, bytes]:
    """The stored inputs by name."""
    folder = Path(__file__).with_name("seeds") / target
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _chosen(raw: bytes) -> tuple[TextTokenizer, str]:
    kind = KINDS[raw[0] % len(KINDS)] if raw else "story"
    return tokenizer_of(kind), raw[1:].decode(errors="replace")


@cache
def translator(kind: str) -> Translator:
    """As the gateway makes it for the bundled model."""
    folder = ModelFolder(STORY, ModelBasics(CONTEXT, 1024, (2,)), SamplingParams(max_tokens=1))
    return Translator(folder, tokenizer_of(kind), templates())


@cache
def templates() -> ChatTemplates:
    """The bundled template as `default`, and TEMPLATES."""
    return ChatTemplates(read_template_sources(STORY) | TEMPLATES, {"bos_token": "<|endoftext|>"})


async def _no_route(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no route runs")
