"""What gateway/http/protocol.py and gateway/process.py need of uvicorn: names, parameters, and what it does when.
A version of uvicorn that differs fails here, with a sentence that says what is different."""

import ast
import asyncio
import inspect
import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.http.parser import Parser
from gateway.http.protocol import BoundedHttp, UnframedCycle, adapt
from gateway.process import Server
from tests.gateway.connection_by_hand import Loop, Transport

METHODS: dict[type[Any], dict[str, str]] = {  # name: parameters
    HttpToolsProtocol: {
        "__init__": "config server_state app_state _loop",
        "connection_made": "transport",
        "connection_lost": "exc",
        "data_received": "data",
        "on_message_begin": "",
        "on_header": "name value",
        "on_headers_complete": "",
        "on_body": "body",
        "on_message_complete": "",
        "send_400_response": "msg",
        "pause_writing": "",
        "resume_writing": "",
        "on_response_complete": "",
        "_unset_keepalive_if_required": "",
    },
    RequestResponseCycle: {"send": "message"},
    FlowControl: {"resume_reading": ""},
    uvicorn.Server: {
        "__init__": "config",
        "main_loop": "",
        "on_tick": "counter",
        "capture_signals": "",
        "shutdown": "sockets",
        "serve": "sockets",
    },
}
OF_SERVER = {"servers", "server_state", "should_exit"}
OF_PROTOCOL = {"connections", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "transport"}
OF_CYCLE = {
    *("chunked_encoding", "disconnected", "expected_content_length", "keep_alive", "message_event"),
    *("response_complete", "response_started", "scope", "transport", "waiting_for_100_continue"),
}
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE, END = b"1\r\nx\r\n", b"0\r\ntrailer: y\r\n\r\n"


def sentence(what: str) -> str:
    return f"uvicorn {uvicorn.__version__}: {what}. gateway/http/protocol.py must be adapted"


def differences(kind: type[Any], methods: dict[str, str]) -> list[str]:
    """A sentence for each method that is missing or takes other parameters."""
    found: list[str] = []
    for name, wanted in methods.items():
        method = getattr(kind, name, None)
        if method is None:
            found.append(sentence(f"{kind.__name__} has no method {name}"))
        elif (given := [*inspect.signature(method).parameters][1:]) != wanted.split():
            found.append(sentence(f"{kind.__name__}.{name} takes {given}, expected {wanted.split()}"))
    return found


class Connection:
    """A connection of uvicorn that notes what is called in which order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        noting = {name: self._noting(name) for name in METHODS[HttpToolsProtocol] if name.startswith("on_")}
        noting["send_400_response"] = lambda http, msg: self.calls.append("send_400_response")
        self.transport = Transport()
        self.transport.close = lambda: self.calls.append("close")  # type: ignore[method-assign]
        config = uvicorn.Config(_route, log_config=None)
        self.state = ServerState()
        self.http: HttpToolsProtocol = type("Noting", (HttpToolsProtocol,), noting)(
            config, self.state, {}, cast(Any, Loop())
        )
        self.http.connection_made(cast(asyncio.Transport, self.transport))

    def _noting(self, name: str) -> Callable[..., None]:
        def call(http: Any, *args: Any) -> None:
            self.calls.append(name)
            getattr(HttpToolsProtocol, name)(http, *args)

        return call

    def take(self, data: bytes) -> list[str]:
        """What uvicorn calls when `data` comes."""
        self.calls.clear()
        self.http.data_received(data)
        return self.calls

    async def answer(self, *headers: tuple[bytes, bytes]) -> list[str]:
        """What uvicorn calls when the route answers."""
        self.calls.clear()
        length = (b"content-length", b"2")
        await self.http.cycle.send({"type": "http.response.start", "status": 200, "headers": [length, *headers]})
        await self.http.cycle.send({"type": "http.response.body", "body": b"{}"})
        return self.calls


async def _route(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no route runs")


# ---- names ----


def used(code: Callable[..., Any], *owners: str) -> set[str]:
    """Names that the source of a class or function asks of `owners`."""
    places = [each for each in ast.walk(ast.parse(inspect.getsource(code))) if isinstance(each, ast.Attribute)]
    return {each.attr for each in places if ast.unparse(each.value) in owners}


def test_all_that_is_used_is_checked_here() -> None:
    """So that a new use of uvicorn's insides is written down above."""
    plain = vars(HttpToolsProtocol(uvicorn.Config(_route, log_config=None), ServerState(), {}, cast(Any, Loop())))
    assert used(BoundedHttp, "self") & plain.keys() == OF_PROTOCOL
    methods = used(BoundedHttp, "super()") | used(BoundedHttp, "self") & vars(HttpToolsProtocol).keys()
    assert methods | {"send_400_response"} == METHODS[HttpToolsProtocol].keys()
    of_cycle = used(BoundedHttp, "self.cycle") | used(adapt, "cycle") | used(UnframedCycle, "self")
    assert of_cycle == OF_CYCLE | {"__class__"}
    assert used(BoundedHttp, "self.flow") == METHODS[FlowControl].keys()


@pytest.mark.parametrize("kind", METHODS)
def test_uvicorn_has_the_methods(kind: type[Any]) -> None:
    assert differences(kind, METHODS[kind]) == []


def test_a_version_beyond_those_that_were_tried_is_refused() -> None:
    """The next minor version may move what is private, so only a new bound, tried by these tests, lets it in."""
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    [declared] = [each for each in map(Requirement, project["dependencies"]) if each.name == "uvicorn"]
    major, minor = uvicorn.__version__.split(".")[:2]
    assert declared.specifier.contains(uvicorn.__version__)
    assert not declared.specifier.contains(f"{major}.{int(minor) + 1}.0") and not declared.specifier.contains("1.0")


async def test_a_server_has_the_attributes() -> None:
    """It ticks until `should_exit`; `servers` listen, and `server_state` has connections and tasks."""
    listens = asyncio.Event()

    class Telling(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            listens.set()

    server = Telling(uvicorn.Config(_route, log_config=None, port=0, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await listens.wait()
    assert [name for name in sorted(OF_SERVER) if not hasattr(server, name)] == [], sentence("Server lacks these")
    assert [each.is_serving() for each in server.servers] == [True]
    assert server.server_state.connections == set() and server.server_state.tasks == set()
    assert not await server.on_tick(0)
    server.should_exit = True
    assert await server.on_tick(0), sentence("`should_exit` does not end the main loop")
    await serving


def test_all_that_is_used_of_a_server_is_checked_here() -> None:
    plain = vars(uvicorn.Server(uvicorn.Config(_route, log_config=None))).keys()
    assert (used(Server, "self") & plain) | {"servers"} == OF_SERVER
    assert used(Server, "self.server_state") == {"connections", "tasks"}
    assert (used(Server, "self") | vars(Server).keys()) & vars(uvicorn.Server).keys() >= {"main_loop", "on_tick"}


def test_uvicorn_has_the_attributes() -> None:
    connection = Connection()
    connection.take(GET)
    for kind, found, names in (
        ("HttpToolsProtocol", connection.http, OF_PROTOCOL),
        ("RequestResponseCycle", connection.http.cycle, OF_CYCLE),
    ):
        assert [name for name in sorted(names) if not hasattr(found, name)] == [], sentence(f"{kind} lacks these")
    assert connection.http in connection.state.connections, sentence("a new connection is not among `connections`")


def test_a_cycle_asks_of_its_transport_only_what_it_is_given() -> None:
    """gateway/http/protocol.py gives it an object with these three."""
    asked = set(re.findall(r"self\.transport\.(\w+)", inspect.getsource(RequestResponseCycle)))
    assert asked == {"write", "is_closing", "close"}, sentence(f"RequestResponseCycle asks its transport for {asked}")


def test_a_connection_asks_of_its_parser_only_what_ours_has() -> None:
    """gateway/http/parser.py stands in for httptools' parser, once uvicorn has made and set up its own."""
    asked = used(HttpToolsProtocol, "self.parser") - {"set_dangerous_leniencies"}
    assert asked <= vars(Parser).keys(), sentence(f"HttpToolsProtocol asks its parser for {asked}")


# ---- what uvicorn does ----


async def callbacks_come_in_order() -> bool:
    start = ["on_message_begin", "on_header", "on_headers_complete"]
    chunks = ["on_body", "on_body", "on_header", "on_message_complete"]  # a trailer comes as a header does
    return Connection().take(CHUNKED + PIECE * 2 + END + GET) == [*start, *chunks, *start, "on_message_complete"]


async def what_is_no_http_is_told_once() -> bool:
    return Connection().take(b"nonsense\r\n\r\n").count("send_400_response") == 1


async def a_request_behind_another_waits() -> bool:
    connection = Connection()
    connection.take(GET)
    first = connection.http.cycle
    connection.take(GET + GET)
    return len(connection.http.pipeline) == 2 and connection.http.cycle is not first


async def a_scope_is_new_when_a_message_begins_and_the_cycle_s_own() -> bool:
    connection = Connection()
    connection.take(b"GET / HT")
    scope = connection.http.scope
    connection.take(b"TP/1.0\r\n\r\n")
    return connection.http.cycle.scope is scope and scope["http_version"] == "1.0"


async def an_answer_that_ends_the_connection_closes_the_cycle_s_transport() -> bool:
    connection = Connection()
    connection.take(GET)
    return await connection.answer((b"connection", b"close")) == ["close", "on_response_complete"]


async def an_answer_closes_when_keep_alive_is_taken_away() -> bool:
    connection = Connection()
    connection.take(GET)
    connection.http.cycle.keep_alive = False
    return await connection.answer() == ["close", "on_response_complete"]


async def an_answer_is_complete_before_it_is_told() -> bool:
    connection = Connection()
    connection.take(GET)
    seen: list[bool] = []
    connection.http.cycle.on_response = lambda: seen.append(connection.http.cycle.response_complete)
    await connection.answer()
    return seen == [True]


async def a_disconnected_cycle_writes_nothing_and_wakes_its_route() -> bool:
    connection = Connection()
    connection.take(CHUNKED)
    receiving = asyncio.create_task(connection.http.cycle.receive())
    await asyncio.sleep(0)
    connection.http.cycle.disconnected = True
    connection.http.cycle.message_event.set()
    message = await receiving
    await connection.answer()
    return message["type"] == "http.disconnect" and connection.transport.written == b""


async def what_follows_an_answer_is_taken_without_effect() -> bool:
    connection = Connection()
    connection.take(CHUNKED)
    await connection.answer()
    connection.take(PIECE + END)
    return not connection.http.cycle.body and not connection.http.pipeline


BEHAVIOURS: dict[str, Callable[[], Awaitable[bool]]] = {
    "the parser's callbacks come in another order": callbacks_come_in_order,
    "what is no HTTP does not come to send_400_response": what_is_no_http_is_told_once,
    "requests that wait are not in `pipeline`, or `cycle` is not the last one": a_request_behind_another_waits,
    "on_message_begin makes no scope that the cycle shares": (a_scope_is_new_when_a_message_begins_and_the_cycle_s_own),
    "an answer with `connection: close` does not close the cycle's transport before on_response_complete": (
        an_answer_that_ends_the_connection_closes_the_cycle_s_transport
    ),
    "`keep_alive = False` does not end the connection after the answer": an_answer_closes_when_keep_alive_is_taken_away,
    "on_response is called before `response_complete` is set": an_answer_is_complete_before_it_is_told,
    "`disconnected` and `message_event` do not end a route that reads": (
        a_disconnected_cycle_writes_nothing_and_wakes_its_route
    ),
    "a body that goes on after its answer is kept": what_follows_an_answer_is_taken_without_effect,
}


@pytest.mark.parametrize("what", BEHAVIOURS)
async def test_uvicorn_acts_as_is_needed(what: str) -> None:
    assert await BEHAVIOURS[what](), sentence(what)
