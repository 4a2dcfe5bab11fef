"""HTTP itself: request lines, headers, lengths, chunks, paths, methods, what follows a request."""

from tests.gateway.bad_input.case import COMPLETIONS, Case, post

GET = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
H2C = b"connection: upgrade, http2-settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA"
BODY = b'{"prompt": "a", "max_tokens": 1}'
NOT_HTTP: list[bytes] = [  # and not what tests/gateway/http/test_parser.py has
    b"\r\n\r\n\r\nnonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0\0\0\0",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1 x\r\n\r\n",
    b"GET / FTP/1.1\r\n\r\n",
    b"get / HTTP/1.1\r\n\r\n",
    b"FETCH / HTTP/1.1\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    b"GET /a b HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
    b"GET / HTTP/1.1\r\na b: c\r\n\r\n",
    b"GET / HTTP/1.1\r\na\0: c\r\n\r\n",
    b"GET / HTTP/1.1\r\na: b\0c\r\n\r\n",
    POST + b"content-length: -1\r\n\r\n",
    POST + b"content-length: abc\r\n\r\n",
    POST + b"content-length: 1e3\r\n\r\n",
    POST + b"content-length: 99999999999999999999999\r\n\r\n",
    CHUNKED + b"zz\r\n",
    CHUNKED + b"-1\r\n",
    CHUNKED + b"fffffffffffffffffffff\r\n",
    CHUNKED + b"3\r\nabcd\r\n",
]
PATHS: list[tuple[str, str]] = [
    ("GET", "/nowhere"),
    ("GET", "/v1"),
    ("GET", "/v1/"),
    ("POST", "/v1/embeddings"),
    ("POST", "/chat/completions"),
    ("POST", "/v1/v1/chat/completions"),
    ("GET", "/models"),
    ("POST", "/v1/completions/x"),
    ("POST", "//v1/completions"),
    ("POST", "/V1/COMPLETIONS"),
    ("GET", "/v1/models/gpt-9"),
    ("GET", "/v1/models/%00"),
    ("GET", "/v1/models/%FF%FE"),
    ("GET", "/v1/models/..%2f..%2fetc%2fpasswd"),
    ("GET", "/../../etc/passwd"),
    ("GET", "/%"),
    ("GET", "/docs/x"),
    ("POST", "/docs"),
    ("GET", "/" + "a" * 5000),
    ("GET", "/v1/models/" + "%41" * 5000),
    ("GET", "/v1/completions"),
    ("PUT", "/v1/completions"),
    ("DELETE", "/v1/chat/completions"),
    ("PATCH", "/v1/completions"),
    ("OPTIONS", "/v1/completions"),
    ("TRACE", "/v1/completions"),
    ("POST", "/health"),
    ("POST", "/metrics"),
    ("DELETE", "/workers"),
    ("GET", "/flush_cache"),
    ("POST", "/v1/models"),
    ("PROPFIND", "/"),
]


def request_line(method: str, path: str) -> tuple[bytes, ...]:
    return (f"{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode(),)


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def too_much() -> list[Case]:
    """What is too long, also when it only says so, against the default limits."""
    many = b"".join(b"a%d: b\r\n" % number for number in range(300))
    long = b"x" * 1_000_000
    keys = b",".join(b'"k%d":1' % number for number in range(600_000))
    return [
        Case("300 headers", (b"GET / HTTP/1.1\r\n" + many + b"\r\n",)),
        Case("a million headers", (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 1_000_000)),
        Case("one long header", (b"GET / HTTP/1.1\r\na: ", long)),
        Case("a header without end of line", (b"GET / HTTP/1.1\r\n", long)),
        Case("a huge query", (b"GET /v1/models?", long, b" HTTP/1.1\r\n\r\n")),
        Case("a huge path", (b"GET /", long)),
        Case("32 MB", post(COMPLETIONS, b" " * 32 * 2**20)),
        Case("32 MB promised", (POST + b"content-length: 33554432\r\n\r\n",)),
        Case("32 MB asked for", (POST + b"expect: 100-continue\r\ncontent-length: 33554432\r\n\r\n",)),
        Case("32 MB in chunks", (CHUNKED, *[chunk(b" " * 2**20)] * 32)),
        Case("8 MB of text", post(COMPLETIONS, b'{"prompt": "' + b"x" * 8_000_000 + b'"}')),
        Case("7 MB of keys", post(COMPLETIONS, b"{" + keys + b"}")),
        Case("8 MB of escapes", post(COMPLETIONS, b'{"prompt": "' + b"\\n" * 4_000_000 + b'"}')),
        Case("endless extensions", (CHUNKED + b"1;", long)),
        Case("endless trailers", (CHUNKED + chunk(BODY) + b"0\r\na: ", long)),
    ]


def odd_but_fine() -> list[Case]:
    """Nothing is wrong with these."""
    lying = b"content-length: 32\r\n\r\n" + BODY
    return [
        Case("HTTP/1.0", (b"GET /v1/models HTTP/1.0\r\n\r\n",)),
        Case("a websocket", (GET.replace(b"connection: close", b"upgrade: websocket\r\nconnection: upgrade, close"),)),
        Case("h2c with a body", (POST.replace(b"connection: close", H2C) + lying,)),
        Case("h2c with a body in chunks", (CHUNKED.replace(b"connection: close", H2C), chunk(BODY), b"0\r\n\r\n")),
        Case("an unknown expectation", (GET.replace(b"host: a", b"host: a\r\nexpect: miracles"),)),
        Case("an empty host", (GET.replace(b"host: a", b"host:"),)),
        Case("a long query", (GET.replace(b"models", b"models?" + b"a=%00&" * 5000),)),
        Case("empty lines before", (b"\r\n\r\n" + GET,)),
        Case("byte by byte", tuple(GET[place : place + 1] for place in range(len(GET)))),
        Case("a body in chunks of one", (CHUNKED, *[chunk(bytes([each])) for each in BODY], b"0\r\n\r\n")),
        Case("more than was promised", (POST + lying + b"}" * 500,)),
        Case("garbage after", (POST + lying + b"nonsense\r\n\r\n",)),
        Case("a GET with a body", (GET.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\nhello"),)),
        Case("200 headers", (GET.replace(b"\r\n\r\n", b"\r\n" + b"a: b\r\n" * 200 + b"\r\n"),)),
        Case("a strange request id", (GET.replace(b"host: a", b"host: a\r\nx-request-id: a b\xff"),)),
        Case("less than was promised", (POST + b"content-length: 20\r\n\r\n" + BODY,)),
    ]


def all_cases() -> list[Case]:
    """Every row; the slow ones, which wait for a deadline, are elsewhere."""
    found = [Case(f"not HTTP {raw[:60]!r}", (raw,)) for raw in NOT_HTTP]
    found += [Case(f"{method} {path[:60]}", request_line(method, path)) for method, path in PATHS]
    return found + too_much() + odd_but_fine()
