"""Bodies that are no JSON, or JSON that nobody should send; what headers say of bodies."""

import gzip

from tests.gateway.bad_input.case import CHAT, COMPLETIONS, USER, Case, post, posted

P2P_ID = "___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_83ad0f"
FINE = b'{"prompt": "a", "max_tokens": 1}'
NOT_JSON: list[bytes] = [
    b"",
    b" ",
    b"\0",
    b"{",
    b"}",
    b"[",
    b'"',
    b"nul",
    b"True",
    b"undefined",
    b"-",
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"0x10",
    b"1e",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"{'prompt': 'a'}",
    b'{"prompt": "a",}',
    b'{"prompt": "a"} x',
    b'{"prompt": "a"}{"prompt": "a"}',
    b'{"prompt" "a"}',
    b'{prompt: "a"}',
    b'{1: "a"}',
    b'{"prompt": "a" // comment\n}',
    b'{"prompt": "a\nb"}',
    b'{"prompt": "a\0b"}',
    b'{"prompt": "\\x41"}',
    b'{"prompt": "\\u12"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\udc00"}',
    b'{"prompt": "\\ud800\\ud800"}',
    b'{"prompt": "\\udfff\\ud800"}',
    b'{"\\ud800": "a"}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\xc3"}',
    b'{"prompt": "\xc0\x80"}',
    b'{"prompt": "\xed\xa0\x80"}',
    b'{"prompt": "\xf4\x90\x80\x80"}',
    b'{"prompt": "\xf0\x9f\x98"}',
    b'\xef\xbb\xbf\xef\xbb\xbf{"prompt": "a"}',
    '{"prompt": "a"}'.encode("utf-16"),
    '{"prompt": "a"}'.encode("utf-32"),
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": -Infinity}',
    b'{"prompt": "a", "unheard_of": [NaN]}',
    b"prompt=a&max_tokens=1",
    b"<prompt>a</prompt>",
    gzip.compress(FINE, mtime=0),
    bytes(range(256)),
    b'{"prompt": "a", "seed": ' + b"9" * 100_000 + b"}",
    b'{"prompt": "a", "x": -' + b"9" * 100_000 + b"}",
    b'{"prompt": "' + b"a" * 1_000_000,
    b" " * 1_000_000,
]
NOT_OBJECTS: list[bytes] = [b"null", b"true", b"5", b"-1.5e3", b'"a"', b"[]", b'[{"prompt": "a"}]', b"1e999"]
DEEP: list[bytes] = [
    b"[" * 100_000,
    b"[" * 1000 + b"]" * 1000,
    b'{"a":' * 50_000,
    b'{"prompt": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"prompt": "a", "x": ' + b'[{"a":' * 5000,
]
TWICE: list[bytes] = [
    b'{"prompt": "a", "prompt": "b"}',
    b'{"prompt": "a", "max_tokens": 1, "max_tokens": 1}',
    b'{"prompt": "a", "n": 1, "\\u006e": 2}',
    b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": true}}',
    b'{"prompt": "a", "x": [[{"deep": {"y": 1, "y": 2}}]]}',
    b'{"prompt": "a", "": 1, "": 2}',
]
TYPES = [
    "",
    "text/plain",
    "text/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "x",
    "a/b/c",
    "*/*",
]
CHARSETS = ["application/json; charset=latin-1", 'application/json; charset="utf-16"']
ENCODINGS = ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x" * 500]


def all_cases() -> list[Case]:
    """Every body, each for one route or the other."""
    routes = (COMPLETIONS, CHAT)
    found = [
        posted(routes[place % 2], body) for some in (NOT_JSON, NOT_OBJECTS, DEEP) for place, body in enumerate(some)
    ]
    found += [posted(COMPLETIONS, body) for body in TWICE]
    found += [Case(kind, post(COMPLETIONS, FINE, kind=kind)) for kind in (*TYPES, *CHARSETS)]
    for encoding in ENCODINGS:
        sent = post(CHAT, gzip.compress(FINE, mtime=0), f"content-encoding: {encoding}")
        found.append(Case(f"encoding {encoding[:20]}", sent))
    found.append(Case("no content type", post(COMPLETIONS, FINE, kind=None)))
    found.append(Case("a byte order mark", post(COMPLETIONS, b"\xef\xbb\xbf" + FINE)))
    found.append(Case("one before a long body", post(COMPLETIONS, b"\xef\xbb\xbf" + FINE + b" " * 100_000)))
    found.append(Case("a charset", post(COMPLETIONS, FINE, kind="Application/JSON;charset=UTF-8")))
    found.append(Case("a kind of JSON", post(CHAT, b"{%b}" % USER.encode(), kind="application/vnd.x+json")))
    found.append(Case("no encoding", post(COMPLETIONS, FINE, "content-encoding: identity")))
    for path, body in ((COMPLETIONS, FINE), (CHAT, b"{%b}" % USER.encode())):
        found.append(Case(f"a router's id {path}", post(path, body, f"x-request-id: {P2P_ID}")))
    return found
