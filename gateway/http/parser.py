"""Decides which requests are HTTP that every server reads alike. Wraps httptools' parser, so that a client's offer of
another protocol does not change what is read.

A proxy in front of the gateway must see the end of a request where the gateway sees it. Else one client's body becomes
another client's request. A head that leaves this open is refused (`fault_of_head`, or httptools itself), and the
connection is closed. A client that offers another protocol (`Upgrade: h2c`) is answered in HTTP/1.1.
"""

import re
from collections.abc import Sequence

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case
VERSIONS = ("1.0", "1.1")
EXPECTED = "expected HTTP/1.1 or HTTP/1.0"
INVALID = "this is not valid HTTP/1.1"
OTHER_VERSION = ("Invalid HTTP version", "Pause on PRI/Upgrade")  # httptools' words for HTTP/9.9 and for HTTP/2
MAX_SHOWN = 80  # characters
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*\Z")  # a name or an address, and perhaps a port


def fault_of_head(version: str, method: bytes, headers: Headers) -> tuple[int, str] | None:
    """(status, message) if a request with this head is refused, else None."""
    if version not in VERSIONS:
        return 505, f"got HTTP/{version}, {EXPECTED}"
    if method == b"CONNECT":
        return 501, "method: got CONNECT, which is not supported: the gateway is no proxy"

    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return 400, f"host: got {len(hosts)} headers, expected one"
    if not hosts and version == "1.1":
        return 400, "host: is missing, expected one header: HTTP/1.1 requires it"
    if hosts and not _HOST.match(hosts[0].rstrip()):
        return 400, f"host: got {_shown(hosts[0])}, expected a host and perhaps a port"

    codings = [value.strip() for name, value in headers if name == b"transfer-encoding"]
    return _fault_of_coding(version, b", ".join(codings)) if codings else None


def _fault_of_coding(version: str, coding: bytes) -> tuple[int, str] | None:
    """(status, message) unless the coding is `chunked` alone. With another one at the end, the body has no end."""
    if version == "1.0":
        return 400, f"transfer-encoding: got {_shown(coding)} with HTTP/1.0, which has no transfer codings"
    if coding.lower() == b"chunked":
        return None
    is_framed = coding.lower().split(b",")[-1].strip() == b"chunked"
    return 501 if is_framed else 400, f"transfer-encoding: got {_shown(coding)}, expected 'chunked'"


def _shown(value: bytes) -> str:
    return repr(value[:MAX_SHOWN].decode("latin-1"))


class Parser:
    """Stands in for httptools' parser in one of uvicorn's connections, and passes on to the connection what it reads.

    httptools takes all bytes behind a head that offers another protocol for that protocol, and stops. A new parser gets
    the rest then. It reads first a head of ours, with the same lines about the body and without the offer:

        the client:        POST /a, upgrade: h2c, content-length: 3 |                           | abc | GET /b
        our second head:                                            | POST /, content-length: 3 |     |
        to the connection: the head of /a                           |                           | abc | the head of /b
    """

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self.fault = (400, INVALID)  # status and message, once feed_data has raised
        self._framing: list[bytes] = []  # lines of the present head that say where its body and the connection end
        self._is_second_head = False
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Reads bytes from the client. Raises httptools.HttpParserError if they are not HTTP."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._read(rest) :]
        except httptools.HttpParserError as error:
            self.fault = _fault_of_parser(error)
            raise

    def _read(self, data: memoryview) -> int:
        """How many bytes were read: all, or those to the end of a head that offers another protocol."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            self._parser = self._new_parser()
            self._is_second_head = True  # until it is complete
            self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(self._framing) + b"\r\n")
            return int(stop.args[0])
        return len(data)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn does: bytes after a request with `connection: close` are no fault. They are dropped.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # ---- what uvicorn asks ----

    def get_http_version(self) -> str:
        """The version in the request line, such as "1.1"."""
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        """The method in the request line."""
        return self._parser.get_method()

    def should_keep_alive(self) -> bool:
        """Whether the client wants to use the connection again."""
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        """False: no other protocol is spoken here."""
        return False

    # ---- what httptools calls ----

    def on_message_begin(self) -> None:
        """A request begins."""
        if not self._is_second_head:
            self._framing = []
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        if not self._is_second_head:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer of a body in chunks."""
        if not self._is_second_head:
            if name.lower() in (b"content-length", b"transfer-encoding"):
                self._framing.append(b"%s: %s\r\n" % (name, value))
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if not self._is_second_head:
            if not self.should_keep_alive():
                self._framing.append(b"connection: close\r\n")
            self._connection.on_headers_complete()
        self._is_second_head = False

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._connection.on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete. httptools also says so where it stops for another protocol: too early."""
        if not self._parser.should_upgrade():
            self._connection.on_message_complete()


def _fault_of_parser(error: httptools.HttpParserError) -> tuple[int, str]:
    """(status, message) for bytes that are not HTTP. The reason is one of the parser's own; it quotes no client."""
    reason = str(error)
    if reason in OTHER_VERSION:
        return 505, f"got another version of HTTP, {EXPECTED}"
    is_ours = isinstance(error, httptools.HttpParserCallbackError)
    return 400, INVALID if is_ours else f"{INVALID}: {reason}"
