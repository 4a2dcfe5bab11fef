"""Where requests end, and which heads are refused, at a connection that is held by hand."""

import asyncio
from itertools import pairwise
from typing import Any, cast

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from gateway.http.parser import fault_of_head
from gateway.http.protocol import BoundedHttp
from runtime.settings import HttpLimits
from tests.gateway.connection_by_hand import Loop, Transport

GET = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n"
OFFERS = (
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n",
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\nconnection: keep-alive, Upgrade\r\n",
    b"connection: x\r\nconnection: upgrade\r\nupgrade: TLS/1.0\r\nupgrade: h2c\r\n",
)


class Noting(BoundedHttp):
    """Notes each request whose head was taken."""

    def __init__(self, **options: Any) -> None:
        super().__init__(HttpLimits(max_body_bytes=10_000), lambda reason: None, self.note, **options)
        self.taken: list[RequestResponseCycle] = []
        self.refused: list[int] = []

    def note(self, status: int) -> None:
        """A refusal was written."""
        self.refused.append(status)

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.taken.append(self.cycle)


async def _route(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no route runs")


def connection_after(*parts: bytes) -> tuple[Noting, Transport]:
    """A connection to which these parts came."""
    transport = Transport()
    config = uvicorn.Config(_route, log_config=None)
    http = Noting(config=config, server_state=ServerState(), app_state={}, _loop=cast(Any, Loop()))
    http.connection_made(cast(asyncio.Transport, transport))
    for part in parts:
        http.data_received(part)
    return http, transport


def requests_in(*parts: bytes) -> list[tuple[str, bytes]]:
    """Method with path, and body, of each request. All must be complete, none refused."""
    http, transport = connection_after(*parts)
    assert transport.written == b"" and not transport.is_ended and not http.refused
    assert not any(each.more_body for each in http.taken)
    return [(f"{each.scope['method']} {each.scope['path']}", bytes(each.body)) for each in http.taken]


def refusal_of(*parts: bytes) -> str:
    """What a client is told whose first request is refused. The connection ends with it, and nothing more is read."""
    http, transport = connection_after(*parts, GET)
    assert len(http.refused) == 1 and http.taken == [] and transport.is_ended
    return transport.written.decode()


# ---- requests that offer another protocol ----


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize(
    ("rest", "body"),
    [
        (b"content-length: 5\r\n\r\nhello", b"hello"),
        (b"content-length: 20\r\n\r\n" + GET[:20], GET[:20]),
        (b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1;x\r\n!\r\n0\r\nconnection: upgrade\r\n\r\n", b"hello!"),
        (b"content-length: 0\r\n\r\n", b""),
        (b"\r\n", b""),
    ],
)
def test_an_offer_changes_nothing_however_the_bytes_come(offer: bytes, rest: bytes, body: bytes) -> None:
    sent, wanted = POST + offer + rest + GET, [("POST /", body), ("GET /next", b"")]
    assert requests_in(sent) == wanted
    assert requests_in(*(sent[place : place + 1] for place in range(len(sent)))) == wanted
    for cut in range(1, len(sent)):
        assert requests_in(sent[:cut], sent[cut:]) == wanted, f"a packet ends after {sent[:cut]!r}"


def in_chunks(body: bytes) -> bytes:
    """A body as two chunks and a trailer."""
    pieces = [each for each in (body[:3], body[3:]) if each]
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\na: b\r\n\r\n"


ONE = st.tuples(
    st.sampled_from(["none", "length", "chunks"]),
    st.sampled_from([b"", *OFFERS]),
    st.sampled_from([b"{}", GET, b"x" * 99]),
)


@given(st.lists(ONE, min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=6))
def test_each_request_is_read_as_it_was_sent(wanted: list[tuple[str, bytes, bytes]], cuts: list[int]) -> None:
    sent, expected = b"", []
    for number, (framing, offer, body) in enumerate(wanted):
        sent += b"POST /%d HTTP/1.1\r\nhost: a\r\n" % number + offer
        if framing == "length":
            sent += b"Content-Length: %d\r\n\r\n" % len(body) + body
        elif framing == "chunks":
            sent += b"Transfer-Encoding: chunked\r\n\r\n" + in_chunks(body)
        else:
            sent += b"\r\n"
        expected.append((f"POST /{number}", b"" if framing == "none" else body))
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    assert requests_in(*(sent[start:end] for start, end in pairwise(places))) == expected


@pytest.mark.parametrize("close", [b"connection: close, upgrade\r\n", b"connection: upgrade\r\nconnection: close\r\n"])
def test_what_comes_after_the_last_request_is_dropped(close: bytes) -> None:
    sent = POST + close + b"upgrade: h2c\r\ncontent-length: 5\r\n\r\nhello"
    assert requests_in(sent + GET) == requests_in(sent, GET) == [("POST /", b"hello")]
    http, _ = connection_after(sent)
    assert not http.cycle.keep_alive


def test_a_fault_behind_an_offer_is_refused() -> None:
    http, transport = connection_after(CHUNKED + OFFERS[0] + b"\r\n2\r\nhello" + GET)
    assert http.refused == [400] and len(http.taken) == 1 and http.taken[0].disconnected
    assert b"Expected LF after chunk data" in transport.written and transport.is_ended


async def test_a_client_of_http_1_0_is_not_told_to_go_on() -> None:
    """It knows no answer before the answer."""
    for version, told in ((b"1.1", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"1.0", b"")):
        expecting = b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}"
        http, transport = connection_after(POST.replace(b"1.1", version) + expecting)
        assert (await http.cycle.receive())["body"] == b"{}"  # type: ignore[typeddict-item]
        assert transport.written == told


# ---- heads that are refused ----


REFUSED: list[tuple[bytes, int, str]] = [
    (b"GET / HTTP/2.0\r\nhost: a\r\n", 505, "got HTTP/2.0, expected HTTP/1.1 or HTTP/1.0"),
    (b"GET / HTTP/0.9\r\nhost: a\r\n", 505, "got HTTP/0.9"),
    (b"GET /\r\n", 505, "got HTTP/0.9"),
    (b"GET / HTTP/9.9\r\nhost: a\r\n", 505, "got another version of HTTP"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", 505, "got another version of HTTP"),
    (b"CONNECT b:443 HTTP/1.1\r\nhost: b:443\r\n", 501, "method: got CONNECT"),
    (b"GET / HTTP/1.1\r\n", 400, "host: is missing, expected one header"),
    (b"GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n", 400, "host: got 2 headers, expected one"),
    (b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n", 400, "host: got 2 headers, expected one"),
    (b"GET / HTTP/1.1\r\nhost: a, b\r\n", 400, "host: got 'a, b', expected a host"),
    (b"GET / HTTP/1.1\r\nhost: a@b\r\n", 400, "host: got 'a@b'"),
    (b"GET / HTTP/1.1\r\nhost: a/b\r\n", 400, "host: got 'a/b'"),
    (b"GET / HTTP/1.1\r\nhost: \xff\r\n", 400, "host: got 'ÿ'"),
    (POST + b"transfer-encoding: gzip, chunked\r\n", 501, "transfer-encoding: got 'gzip, chunked', expected 'chunked'"),
    (POST + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", 501, "got 'gzip, chunked'"),
    (POST + b"transfer-encoding: ,Chunked\r\n", 501, "got ',Chunked'"),
    (POST + b"transfer-encoding: identity\r\n", 400, "got 'identity'"),
    (POST + b"transfer-encoding: xchunked\r\n", 400, "got 'xchunked'"),
    (POST + b"transfer-encoding: gzip\r\n", 400, "got 'gzip'"),
    (POST + b"transfer-encoding: chunked;q=1\r\n", 400, "got 'chunked;q=1'"),
    (POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n", 400, "got 'chunked' with HTTP/1.0"),
    # httptools refuses these:
    (POST + b"transfer-encoding: chunked, identity\r\n", 400, "Transfer-Encoding"),
    (POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", 400, "Transfer-Encoding"),
    (POST + b"transfer-encoding: \r\n", 400, "Empty Transfer-Encoding"),
    (POST + b"transfer-encoding: \x0bchunked\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b"transfer-encoding:\r\n chunked\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n", 400, "Content-Length can't be present"),
    (POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n", 400, "Transfer-Encoding can't be present"),
    (POST + b"content-length: 5\r\ntransfer-encoding: identity\r\n", 400, "Transfer-Encoding can't be present"),
    (POST + b"content-length: 5\r\ncontent-length: 6\r\n", 400, "Duplicate Content-Length"),
    (POST + b"content-length: 5\r\ncontent-length: 5\r\n", 400, "Duplicate Content-Length"),
    (POST + b"content-length: 5, 5\r\n", 400, "Content-Length"),
    (POST + b"content-length: +5\r\n", 400, "Content-Length"),
    (POST + b"content-length: 0x5\r\n", 400, "Content-Length"),
    (POST + b"content-length: \r\n", 400, "Empty Content-Length"),
    (POST + b"content-length : 5\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b"content-length\t: 5\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b"content-length: 1\r\n 5\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b" content-length: 5\r\n", 400, "not valid HTTP/1.1: "),
    (b"GET / HTTP/1.1\r\n host: a\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b"a: b\n", 400, "not valid HTTP/1.1: "),
    (POST + b"a: b\rcontent-length: 5\r\n", 400, "not valid HTTP/1.1: "),
    (POST + b"a: \0\r\n", 400, "not valid HTTP/1.1: "),
    (b"GET http://[::1 HTTP/1.1\r\nhost: a\r\n", 400, "this is not valid HTTP/1.1"),
]


@pytest.mark.parametrize(("head", "status", "words"), REFUSED)
@pytest.mark.parametrize("offer", [b"", OFFERS[0]])
def test_a_head_that_is_refused(head: bytes, status: int, words: str, offer: bytes) -> None:
    """Also if it offers another protocol. What follows is neither read as its body nor as a request."""
    sent = head + (offer if head.count(b"\r\n") > 1 and not head.startswith(b"PRI") else b"") + b"\r\n"
    for parts in ([sent], [sent + b"hello"], [sent[place : place + 1] for place in range(len(sent))]):
        told = refusal_of(*parts)
        assert told.startswith(f"HTTP/1.1 {status} ") and words in told, told


def test_a_head_that_is_refused_behind_a_request_leaves_its_answer_alone() -> None:
    http, transport = connection_after(GET + POST + b"transfer-encoding: gzip, chunked\r\n\r\n" + GET)
    assert len(http.taken) == 1 and transport.written == b"" and http.refused == []
    assert not http.cycle.keep_alive, "the connection ends once the first request is answered"


@pytest.mark.parametrize(
    "host", [b"", b"a", b"A.example.", b"a_b:8000", b"10.0.0.1:1", b"[::1]:8000", b"a%20b", b"a\t "]
)
def test_hosts_that_are_fine(host: bytes) -> None:
    assert fault_of_head("1.1", b"GET", [(b"host", host)]) is None


def test_http_1_0_needs_no_host() -> None:
    assert fault_of_head("1.0", b"GET", []) is None
    assert fault_of_head("1.1", b"POST", [(b"host", b"a"), (b"transfer-encoding", b"Chunked\t")]) is None


def test_a_long_value_is_shown_in_part() -> None:
    fault = fault_of_head("1.1", b"GET", [(b"host", b"@" * 5000)])
    assert fault is not None and len(fault[1]) < 150
